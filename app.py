"""The microscope in a browser: page config and navigation only."""

import streamlit as st

from mxviz._paths import ASSETS
from mxviz.views import pages, style

st.set_page_config(
    page_title="mxviz: a microscope for KV caches",
    page_icon=str(ASSETS / "favicon.png"),
    layout="wide",
    menu_items={"About": "mxviz shows what micro-scaling does to the KV cache of a language model."},
)
style.apply()
st.navigation(pages.all_pages(), position="top").run()
