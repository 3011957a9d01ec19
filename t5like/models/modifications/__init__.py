"""Parts of the Transformer modifications that Narang et al. 2021 (arXiv 2102.11972) compare, and that need modules;
and XLNet's attention.

The others are fields of TransformerConfig that layers.py, blocks.py, stack.py and embedder.py read.
"""
