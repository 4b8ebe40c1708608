"""Regions of a model that hand-written C++ computes on a CPU: products with weights,
convolutions."""
