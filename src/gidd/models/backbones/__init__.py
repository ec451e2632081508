"""Networks that turn noisy tokens into hidden states."""
