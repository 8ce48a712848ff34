// Which instruction sets the vector code of this repository is compiled for. Include before any Highway header.
//
// x86: SSE4, AVX2, AVX3 (AVX-512 F/BW/DQ/VL) and the compiler's baseline. SSSE3 and AVX3_DL are left out: the first is
// older than anything that serves models, the second adds no f32 instruction. Arm: NEON. Vectors of a length unknown
// to the compiler (SVE, RVV) are left out because the kernels keep arrays of vectors.
#ifndef KOINE_KERNELS_OPS_HWY_TARGETS_H_
#define KOINE_KERNELS_OPS_HWY_TARGETS_H_

#ifndef HWY_DISABLED_TARGETS
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_AVX3_DL | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV)
#endif

#endif  // KOINE_KERNELS_OPS_HWY_TARGETS_H_
