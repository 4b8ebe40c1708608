# %% [markdown]
# # A language model
#
# Seven layers of a small BERT, as PyTorch exports them: `models/mini_transformer.onnx`. Run it in a
# checkout: `python docs/gallery/language.py`.

# %%
from collections import Counter

import onnx

import taso_mirage

model = onnx.load("models/mini_transformer.onnx")
print(Counter(node.op_type for node in model.graph.node).most_common(5))

# %% [markdown]
# An exporter writes attention as products, reshapes, transposes and a softmax. `explain=True` keeps
# every change with its place, its gain and its proof.

# %%
faster, result = taso_mirage.optimize(model, budget=15, explain=True, return_result=True)
print(Counter(node.op_type for node in faster.graph.node).most_common(5))

# %%
for each in result.explanations[:3]:
    before, after = each.predicted
    print(
        f"{len(each.change.places)} places, predicted {before * 1e6:.1f} us -> {after * 1e6:.1f} us a place: {each.ground}"
    )
    for name in each.change.equations:
        print("   by", name)

# %% [markdown]
# The times were measured as whole models in turn, both at ONNX Runtime's full optimization.

# %%
print(result.timing or result.kept)

# %% [markdown]
# Rules are values. Without the rules that make attention one operator, the search finds less.
# (`measure=False` decides by a roofline, so other work of the machine has no effect on this result.)

# %%
plain = taso_mirage.rules() - "multi_head_attention.*"
_, every = taso_mirage.optimize(model, measure=False, budget=10, return_result=True)
_, without = taso_mirage.optimize(model, rules=plain, measure=False, budget=10, return_result=True)
print(f"{every.terms_after} operators with them, {without.terms_after} without")
assert every.terms_after < without.terms_after
