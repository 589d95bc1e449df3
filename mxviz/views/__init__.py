"""Streamlit pages: read widgets, call one function, show one figure."""

import os

# A thread of torch that spins while it waits for its partner keeps the core that the partner needs: beside
# one busy program, decoding then slows down tenfold. Read when torch is imported, so it stands here.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
