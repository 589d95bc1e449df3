"""mxviz: a microscope for micro-scaled KV caches."""

__version__ = "0.1.0"
