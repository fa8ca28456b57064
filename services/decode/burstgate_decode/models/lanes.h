/* A vector of floats as wide as the processor's, and how many of them its registers hold as sums. */
#ifndef BURSTGATE_LANES_H
#define BURSTGATE_LANES_H

#include <string.h>

#if defined(__AVX2__)
#include <immintrin.h>
#elif defined(__ARM_FEATURE_FMA)
#include <arm_neon.h>
#endif

/* A tile of sums that the registers hold beside what is multiplied: rows, by TILE_WIDTH. */
#if defined(__AVX512F__)
#define LANES 16
#define TILE_ROWS 6
#elif defined(__AVX2__)
#define LANES 8
#define TILE_ROWS 3
#elif defined(__aarch64__)
#define LANES 4
#define TILE_ROWS 6
#else
#define LANES 4
#define TILE_ROWS 3
#endif
#define TILE_WIDTH 4

typedef float lanes __attribute__((vector_size(LANES * 4)));

/* One rounding where the processor has it, in every tile alike. */
static inline lanes multiply_add(lanes x, lanes y, lanes sum) {
#if defined(__AVX512F__)
  return (lanes)_mm512_fmadd_ps((__m512)x, (__m512)y, (__m512)sum);
#elif defined(__AVX2__) && defined(__FMA__)
  return (lanes)_mm256_fmadd_ps((__m256)x, (__m256)y, (__m256)sum);
#elif defined(__ARM_FEATURE_FMA)
  return (lanes)vfmaq_f32((float32x4_t)sum, (float32x4_t)x, (float32x4_t)y);
#else
  return sum + x * y;
#endif
}

/* Into a register: compilers that multiply from memory instead read all of it once more for every sum. */
static inline lanes load(const float *from) {
  lanes x;
  memcpy(&x, from, sizeof x);
#if defined(__x86_64__)
  __asm__("" : "+x"(x));
#endif
  return x;
}

/* `call(rows)`, where `rows` is a constant, so that sums stay in registers. */
#if TILE_ROWS >= 6
#define WITH_ROWS(rows, call) \
  switch (rows) {             \
    case 1: call(1); break;   \
    case 2: call(2); break;   \
    case 3: call(3); break;   \
    case 4: call(4); break;   \
    case 5: call(5); break;   \
    case 6: call(6); break;   \
  }
#else
#define WITH_ROWS(rows, call) \
  switch (rows) {             \
    case 1: call(1); break;   \
    case 2: call(2); break;   \
    case 3: call(3); break;   \
  }
#endif

#endif
