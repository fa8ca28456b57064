/*
 * The float32 matrix product in front of MLX on Linux CPUs: exports cblas_sgemm and hands large products to OpenBLAS.
 *
 * It owns one promise: while rows are exact, row i of a product does not depend on how many rows the product has.
 * OpenBLAS breaks that by choosing its kernels by the number of rows, so products of up to MAX_EXACT_ROWS are computed
 * here, each output in an order that neither the number of rows nor, in attention, keys masked away before or behind it
 * can change. It must stay safe to call from any number of threads. It knows nothing of models: a product is its sizes.
 */
#include <cblas.h>
#include <stdatomic.h>
#include <string.h>

#include "weight_product.h"

static atomic_int exact_rows;
static atomic_ulong calls;

#define MAX_HEAD 256       /* Attention products have a head's size on one side, and no head is wider. */
#define MAX_EXACT_ROWS 256 /* More rows than any verify has: prompt chunks, which OpenBLAS does faster. */

#if defined(__AVX512F__)
#define LANES 16
#elif defined(__AVX__)
#define LANES 8
#else
#define LANES 4
#endif
typedef float lanes __attribute__((vector_size(LANES * 4)));
typedef float octet __attribute__((vector_size(32)));
typedef float quad __attribute__((vector_size(16)));

static void keys_product(int m, int n, int k, const float *a, int lda, const float *b, int ldb, float *c, int ldc);
static void values_product(int m, int n, int k, const float *a, int lda, const float *b, int ldb, float *c, int ldc);

void cblas_sgemm(CBLAS_ORDER order, CBLAS_TRANSPOSE ta, CBLAS_TRANSPOSE tb, blasint m, blasint n, blasint k,
                 float alpha, const float *a, blasint lda, const float *b, blasint ldb, float beta, float *c,
                 blasint ldc) {
  atomic_fetch_add_explicit(&calls, 1, memory_order_relaxed);
  int plain = order == CblasRowMajor && ta == CblasNoTrans && alpha == 1.0f && beta == 0.0f;
  if (!plain || !atomic_load_explicit(&exact_rows, memory_order_relaxed) || m > MAX_EXACT_ROWS)
    scipy_cblas_sgemm(order, ta, tb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
  else if (tb == CblasNoTrans)
    values_product(m, n, k, a, lda, b, ldb, c, ldc);
  else if (k <= MAX_HEAD)
    keys_product(m, n, k, a, lda, b, ldb, c, ldc);
  else
    burstgate_weight_product(m, n, k, a, lda, b, ldb, c, ldc, scipy_openblas_get_num_threads());
}

unsigned long burstgate_calls(void) { return atomic_load_explicit(&calls, memory_order_relaxed); }

void burstgate_set_exact_rows(int on) { atomic_store(&exact_rows, on); }

static inline lanes load(const float *from) {
  lanes x;
  memcpy(&x, from, sizeof x);
  return x;
}

/* Adds by halves: the same tree for every product. */
static inline float sum_lanes(lanes x) {
  quad sum;
#if LANES == 16
  octet low, high;
  memcpy(&low, &x, sizeof low);
  memcpy(&high, (const char *)&x + sizeof low, sizeof high);
  low += high;
#elif LANES == 8
  octet low = x;
#endif
#if LANES > 4
  quad upper;
  memcpy(&sum, &low, sizeof sum);
  memcpy(&upper, (const char *)&low + sizeof sum, sizeof upper);
  sum += upper;
#else
  sum = x;
#endif
  return (sum[0] + sum[2]) + (sum[1] + sum[3]);
}

/* Inlined with a constant number of rows, so that the sums stay in registers. */
static inline __attribute__((always_inline)) void keys_block(const int rows, int n, int k, const float *a, int lda,
                                                             const float *b, int ldb, float *c, int ldc) {
  for (int j = 0; j < n; j++) {
    const float *key = b + (size_t)j * ldb;
    lanes sums[4] = {{0}};
    int at = 0;
    for (; at + LANES <= k; at += LANES) {
      lanes part = load(key + at);
      for (int r = 0; r < rows; r++) sums[r] += load(a + (size_t)r * lda + at) * part;
    }
    for (int r = 0; r < rows; r++) {
      float total = sum_lanes(sums[r]);
      for (int i = at; i < k; i++) total += a[(size_t)r * lda + i] * key[i];
      c[(size_t)r * ldc + j] = total;
    }
  }
}

static inline __attribute__((always_inline)) void values_block(const int rows, int n, int k, const float *a, int lda,
                                                               const float *b, int ldb, float *c, int ldc) {
  int j = 0;
  for (; j + 2 * LANES <= n; j += 2 * LANES) {
    lanes sums[4][2] = {{{0}}};
    for (int i = 0; i < k; i++) {
      lanes left = load(b + (size_t)i * ldb + j), right = load(b + (size_t)i * ldb + j + LANES);
      for (int r = 0; r < rows; r++) {
        float weight = a[(size_t)r * lda + i];
        sums[r][0] += weight * left;
        sums[r][1] += weight * right;
      }
    }
    for (int r = 0; r < rows; r++) memcpy(c + (size_t)r * ldc + j, sums[r], sizeof sums[r]);
  }
  for (; j < n; j++)
    for (int r = 0; r < rows; r++) {
      float total = 0;
      for (int i = 0; i < k; i++) total += a[(size_t)r * lda + i] * b[(size_t)i * ldb + j];
      c[(size_t)r * ldc + j] = total;
    }
}

/* Four rows share each read of b. A row's own order of sums is the same in a block of four and alone. */
#define BY_BLOCKS(block)                                                               \
  int i = 0;                                                                           \
  for (; i + 4 <= m; i += 4)                                                           \
    block(4, n, k, a + (size_t)i * lda, lda, b, ldb, c + (size_t)i * ldc, ldc);        \
  if (i + 2 <= m) {                                                                    \
    block(2, n, k, a + (size_t)i * lda, lda, b, ldb, c + (size_t)i * ldc, ldc);        \
    i += 2;                                                                            \
  }                                                                                    \
  if (i < m) block(1, n, k, a + (size_t)i * lda, lda, b, ldb, c + (size_t)i * ldc, ldc);

static void keys_product(int m, int n, int k, const float *a, int lda, const float *b, int ldb, float *c, int ldc) {
  BY_BLOCKS(keys_block)
}

static void values_product(int m, int n, int k, const float *a, int lda, const float *b, int ldb, float *c, int ldc) {
  BY_BLOCKS(values_block)
}
