// Linked into a library of compiled kernels: what the compiler was allowed to use, so that another machine refuses it instead of dying.
extern "C" const char taso_mirage_features[] =
    "3"
#ifdef __x86_64__
    " x86-64"
#endif
#ifdef __aarch64__
    " aarch64"
#endif
#ifdef __AVX2__
    " avx2"
#endif
#ifdef __FMA__
    " fma"
#endif
#ifdef __AVX512F__
    " avx512f"
#endif
#ifdef __AVX512VL__
    " avx512vl"
#endif
#ifdef __AVX512BW__
    " avx512bw"
#endif
#ifdef __AVX512DQ__
    " avx512dq"
#endif
#ifdef __AVX512VNNI__
    " avx512vnni"
#endif
#ifdef __AVXVNNI__
    " avxvnni"
#endif
    ;
