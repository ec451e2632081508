"""Networks that map noisy tokens to hidden states. Import each from its own module."""
