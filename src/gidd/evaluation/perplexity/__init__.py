"""The likelihood of corpora: windows over documents, diffusion and autoregressive models.

Reading order: `perplexity_settings`, `windows`, `window_scoring`, `causal`, `perplexity`.
"""
