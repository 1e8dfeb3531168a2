"""A compute service of two hosts as a model, the shipped library beneath it, and a search through what may happen."""
