"""Loop nests of a kernel in C++, and the compiler that builds them: what lies behind
`codegen.cpp`."""
