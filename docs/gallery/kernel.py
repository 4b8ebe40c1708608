# %% [markdown]
# # A kernel from Python
#
# The norm of a row and the product behind it, as one kernel. No model and no GPU are needed. Run it
# in a checkout: `python docs/gallery/kernel.py`.

# %%
import taso_mirage
from taso_mirage.rewriting.text import show_graph

graph = taso_mirage.new_graph()
x = graph.new_input(dims=(16, 1024), name="X")
w = graph.new_input(dims=(1024, 4096), name="W")
graph.mark_output(graph.matmul(graph.rms_norm(x), w))
print(show_graph(graph.graph()))

# %% [markdown]
# The search finds muGraphs. A muGraph says how the work is cut into blocks, and which values each
# block loads, loops over and keeps. All are verified; the fastest by an analytic model of an H100
# comes first.

# %%
found = graph.superoptimize(best=3)
for each in found:
    kernels = [f"{n.attr('grid')} blocks with a loop of {n.attr('loop')}" for n in each.graph if n.op == "kernel"]
    print(f"{each.seconds * 1e6:.1f} us predicted: {', then '.join(kernels)}")

# %% [markdown]
# This is the program of one block of the fastest. The division by the root is *behind* the product:
# the mean of the squares is only known after the loop, so the division moved there.

# %%
print(show_graph(found[0].graph))

# %% [markdown]
# Why it is right: tests in a finite field, where equal means equal, and runs in floats.

# %%
evidence = found[0].evidence
print(f"{evidence.tests} tests in the field")
for each in evidence.measured[:3]:
    print(f"{each.dtype}, {each.draw} numbers: error {each.error:.1g}, allowed {each.allowed:.1g}")
assert all(each.error <= each.allowed for each in evidence.measured)

# %% [markdown]
# The program for a GPU, in Triton:

# %%
found[0].generate_triton_program("rms_linear.py")
with open("rms_linear.py") as file:
    print("".join(file.readlines()[:40]))
