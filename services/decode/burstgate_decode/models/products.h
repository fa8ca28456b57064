/* Float32 matrix products whose rows do not depend on each other's number. */
#ifndef BURSTGATE_PRODUCTS_H
#define BURSTGATE_PRODUCTS_H

#include <stddef.h>

/* Row-major matrices with a stride for each row. */
typedef struct {
  int m, n, k;
  const float *a, *b;
  size_t lda, ldb, ldc;
  float *c;
} operands;

/* c [m, n] = a [m, k] by the transpose of b [n, k]: a weight, or the keys of an attention. */
void burstgate_product_by_rows(const operands *of, int threads);

/* c [m, n] = a [m, k] by b [k, n]: the values of an attention. */
void burstgate_product_by_columns(const operands *of, int threads);

#endif
