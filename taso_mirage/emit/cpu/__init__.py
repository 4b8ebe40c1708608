"""Loop nests of a kernel in C++, and the compiler that builds them: the rooms behind
`emit.cpp`."""
