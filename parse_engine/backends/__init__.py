"""What a model can do, by where it runs."""
