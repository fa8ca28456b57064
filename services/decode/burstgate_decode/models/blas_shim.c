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
#include <stddef.h>

#include "products.h"

#define MAX_EXACT_ROWS 256 /* More rows than any verify has: prompt chunks, which OpenBLAS does faster. */
#define LEAST_SHARED 65536 /* Multiplications that take as long as to tell another thread of them. */

static atomic_int exact_rows;
static atomic_ulong calls;

void cblas_sgemm(CBLAS_ORDER order, CBLAS_TRANSPOSE ta, CBLAS_TRANSPOSE tb, blasint m, blasint n, blasint k,
                 float alpha, const float *a, blasint lda, const float *b, blasint ldb, float beta, float *c,
                 blasint ldc) {
  atomic_fetch_add_explicit(&calls, 1, memory_order_relaxed);
  int plain = order == CblasRowMajor && ta == CblasNoTrans && alpha == 1.0f && beta == 0.0f;
  if (!plain || !atomic_load_explicit(&exact_rows, memory_order_relaxed) || m > MAX_EXACT_ROWS) {
    scipy_cblas_sgemm(order, ta, tb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
    return;
  }
  operands of = {.m = m, .n = n, .k = k, .a = a, .b = b, .lda = lda, .ldb = ldb, .ldc = ldc, .c = c};
  int threads = (size_t)m * n * k < LEAST_SHARED ? 1 : scipy_openblas_get_num_threads();
  if (tb == CblasNoTrans)
    burstgate_product_by_columns(&of, threads);
  else
    burstgate_product_by_rows(&of, threads);
}

unsigned long burstgate_calls(void) { return atomic_load_explicit(&calls, memory_order_relaxed); }

void burstgate_set_exact_rows(int on) { atomic_store(&exact_rows, on); }
