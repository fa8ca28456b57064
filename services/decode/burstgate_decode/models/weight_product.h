/* A float32 matrix product by a weight whose rows do not depend on each other's number. */
#ifndef BURSTGATE_WEIGHT_PRODUCT_H
#define BURSTGATE_WEIGHT_PRODUCT_H

/* c [m, n] = a [m, k] by the transpose of b [n, k], all of row-major order with a stride for each row. `threads` is
 * heeded by the first call of the process. */
void burstgate_weight_product(int m, int n, int k, const float *a, int lda, const float *b, int ldb, float *c, int ldc,
                              int threads);

#endif
