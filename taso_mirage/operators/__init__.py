"""What an operator is: its definition over the primitives, and what follows from the definition."""
