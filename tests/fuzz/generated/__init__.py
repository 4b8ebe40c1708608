"""Random models of every operator that ONNX Runtime's CPU provider runs, valid by construction.

`values` and `graph` are the engine: values of known type, and a graph that infers the types of what
is added. `operators`, `layers`, `quantized` and `texts` are tables of single operators, `motifs` of
patterns that optimizers know, `bodies` of subgraphs and functions. `model` draws a model from them,
and `python -m fuzz.generated.coverage` counts the contents of many.
"""
