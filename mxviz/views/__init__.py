"""Streamlit pages: read widgets, call one function, show one figure."""
