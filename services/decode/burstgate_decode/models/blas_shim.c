/*
 * The float32 matrix product in front of MLX on Linux CPUs: exports cblas_sgemm and hands the work to OpenBLAS.
 *
 * It owns one promise: once a padding plan is set, row i of a product does not depend on how many rows the product
 * has. OpenBLAS breaks that by taking another kernel for small products, so
 *   - a weight product with fewer rows than its plan says is computed with zero rows below it, and
 *   - an attention product, or a weight that no padding helps, is computed here, each output in an order of its own
 *     that neither the number of rows nor keys masked away before or behind it can change.
 * It must stay safe to call from any number of threads. It knows nothing of models: a product is its sizes.
 */
#include <cblas.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "weight_product.h"

/* A weight of [n, k]: smaller products are padded to so many rows; OWN_PRODUCT stands for computed here. */
typedef struct {
  int n, k, rows;
} burstgate_entry;

#define OWN_PRODUCT 0

typedef struct {
  int default_rows;
  int count;
  burstgate_entry entries[];
} plan;

/* Replaced whole and never freed: a product on another thread may still be reading the old one. */
static _Atomic(plan *) current_plan;
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

static int planned_rows(const plan *p, CBLAS_TRANSPOSE tb, int n, int k);
static void keys_product(int m, int n, int k, const float *a, int lda, const float *b, int ldb, float *c, int ldc);
static void values_product(int m, int n, int k, const float *a, int lda, const float *b, int ldb, float *c, int ldc);
static void padded_product(int rows, CBLAS_TRANSPOSE tb, int m, int n, int k, float alpha, const float *a, int lda,
                           const float *b, int ldb, float *c, int ldc);
static void weight_product(int m, int n, int k, const float *a, int lda, const float *b, int ldb, float *c, int ldc);

void cblas_sgemm(CBLAS_ORDER order, CBLAS_TRANSPOSE ta, CBLAS_TRANSPOSE tb, blasint m, blasint n, blasint k,
                 float alpha, const float *a, blasint lda, const float *b, blasint ldb, float beta, float *c,
                 blasint ldc) {
  atomic_fetch_add_explicit(&calls, 1, memory_order_relaxed);
  const plan *p = atomic_load_explicit(&current_plan, memory_order_acquire);
  if (p && order == CblasRowMajor && ta == CblasNoTrans && beta == 0.0f && m > 0 && n > 0 && k > 0) {
    int rows = planned_rows(p, tb, n, k);
    if (rows == OWN_PRODUCT && alpha == 1.0f && m <= MAX_EXACT_ROWS) {
      if (tb == CblasNoTrans)
        values_product(m, n, k, a, lda, b, ldb, c, ldc);
      else if (k <= MAX_HEAD)
        keys_product(m, n, k, a, lda, b, ldb, c, ldc);
      else
        weight_product(m, n, k, a, lda, b, ldb, c, ldc);
      return;
    }
    if (m < rows) {
      padded_product(rows, tb, m, n, k, alpha, a, lda, b, ldb, c, ldc);
      return;
    }
  }
  scipy_cblas_sgemm(order, ta, tb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
}

unsigned long burstgate_calls(void) { return atomic_load_explicit(&calls, memory_order_relaxed); }

/* count entries; default_rows of 1 and no entries switches every change off. Returns 0 when memory ran out. */
int burstgate_set_plan(const burstgate_entry *entries, int count, int default_rows) {
  plan *next = NULL;
  if (count > 0 || default_rows != 1) {
    next = malloc(sizeof(plan) + (size_t)count * sizeof(burstgate_entry));
    if (!next) return 0;
    next->default_rows = default_rows;
    next->count = count;
    if (count > 0) memcpy(next->entries, entries, (size_t)count * sizeof(burstgate_entry));
  }
  atomic_store_explicit(&current_plan, next, memory_order_release);
  return 1;
}

static int planned_rows(const plan *p, CBLAS_TRANSPOSE tb, int n, int k) {
  /* First, because keys of one length can have the sizes of a weight. Weights this small lose nothing by it. */
  if (p->default_rows != 1 && (tb == CblasNoTrans ? n : k) <= MAX_HEAD) return OWN_PRODUCT;
  for (int i = 0; i < p->count; i++)
    if (p->entries[i].n == n && p->entries[i].k == k) return p->entries[i].rows;
  return p->default_rows;
}

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

/* One scratch buffer a thread, given back when the thread ends. */
typedef struct {
  float *at;
  size_t floats;
} scratch;

static pthread_key_t scratch_key;
static pthread_once_t scratch_once = PTHREAD_ONCE_INIT;

static void free_scratch(void *held) {
  free(((scratch *)held)->at);
  free(held);
}

static void make_scratch_key(void) { pthread_key_create(&scratch_key, free_scratch); }

static _Noreturn void out_of_memory(void) {
  /* The product of another kernel would be a silently different text. */
  fputs("burstgate: out of memory for a matrix product\n", stderr);
  abort();
}

static float *scratch_of(size_t floats) {
  pthread_once(&scratch_once, make_scratch_key);
  scratch *held = pthread_getspecific(scratch_key);
  if (!held) {
    held = calloc(1, sizeof *held);
    if (held) pthread_setspecific(scratch_key, held);
  }
  if (held && held->floats < floats) {
    free(held->at);
    held->at = malloc(floats * sizeof(float));
    held->floats = held->at ? floats : 0;
  }
  if (!held || !held->at) out_of_memory();
  return held->at;
}

static void padded_product(int rows, CBLAS_TRANSPOSE tb, int m, int n, int k, float alpha, const float *a, int lda,
                           const float *b, int ldb, float *c, int ldc) {
  size_t in = (size_t)rows * k;
  float *padded = scratch_of(in + (size_t)rows * n), *result = padded + in;
  for (int i = 0; i < m; i++) memcpy(padded + (size_t)i * k, a + (size_t)i * lda, (size_t)k * sizeof(float));
  memset(padded + (size_t)m * k, 0, (size_t)(rows - m) * k * sizeof(float));
  scipy_cblas_sgemm(CblasRowMajor, CblasNoTrans, tb, rows, n, k, alpha, padded, k, b, ldb, 0.0f, result, n);
  for (int i = 0; i < m; i++) memcpy(c + (size_t)i * ldc, result + (size_t)i * n, (size_t)n * sizeof(float));
}

static void weight_product(int m, int n, int k, const float *a, int lda, const float *b, int ldb, float *c, int ldc) {
  int threads = scipy_openblas_get_num_threads();
  if (!burstgate_weight_product(m, n, k, a, lda, b, ldb, c, ldc, threads)) out_of_memory();
}
