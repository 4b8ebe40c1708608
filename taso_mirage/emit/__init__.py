"""From a muGraph (a graph of `kernel` terms) to source: Triton for GPUs, C++ for CPUs; compiled and
tuned (Mirage, OSDI'25, section 6)."""
