/*
 * A product by a weight or by keys, whose rows lie in memory as the columns of the product.
 *
 * It owns one promise: an output is one chain of multiply-adds for each lane of a vector, over k from the first to the
 * last, and the lanes are added in one order. So neither the number of rows, nor a row's place, nor the split among
 * threads can change a bit. Rows of both factors are read as they lie, so that nothing is repacked: a weight comes from
 * memory once and meets all rows while it is in a cache.
 */
#include "helpers.h"
#include "lanes.h"
#include "products.h"

#define BLOCK_ROWS 24 /* Rows that stay in a cache while a thread's columns go by. */
#define MOST_PIECES 8 /* That a thread takes at a time: so much of a weight fits the second cache. */

typedef float octet __attribute__((vector_size(32)));
typedef float quad __attribute__((vector_size(16)));

/* Adds by halves. */
static inline quad folded(lanes x) {
#if LANES == 16
  octet wide, upper;
  memcpy(&wide, &x, sizeof wide);
  memcpy(&upper, (const char *)&x + sizeof wide, sizeof upper);
  wide += upper;
#else
  lanes wide = x;
#endif
  quad low;
  memcpy(&low, &wide, sizeof low);
#if LANES > 4
  quad high;
  memcpy(&high, (const char *)&wide + sizeof low, sizeof high);
  low += high;
#endif
  return low;
}

/* The totals of four sums. */
static inline quad totals(const lanes *sums) {
  quad a = folded(sums[0]), b = folded(sums[1]), c = folded(sums[2]), d = folded(sums[3]);
  quad ab = __builtin_shufflevector(a, b, 0, 4, 1, 5) + __builtin_shufflevector(a, b, 2, 6, 3, 7);
  quad cd = __builtin_shufflevector(c, d, 0, 4, 1, 5) + __builtin_shufflevector(c, d, 2, 6, 3, 7);
  return __builtin_shufflevector(ab, cd, 0, 1, 4, 5) + __builtin_shufflevector(ab, cd, 2, 3, 6, 7);
}

static inline __attribute__((always_inline)) void tile(const int rows, const int columns, const operands *of,
                                                       const float *a, const float *b, float *c) {
  lanes sums[TILE_ROWS][TILE_WIDTH];
  for (int r = 0; r < rows; r++)
    for (int j = 0; j < columns; j++) sums[r][j] = (lanes){0};
  int i = 0;
  for (; i + LANES <= of->k; i += LANES) {
    lanes x[TILE_ROWS];
    for (int r = 0; r < rows; r++) x[r] = load(a + r * of->lda + i);
    for (int j = 0; j < columns; j++) {
      lanes weight = load(b + j * of->ldb + i);
      for (int r = 0; r < rows; r++) sums[r][j] = multiply_add(x[r], weight, sums[r][j]);
    }
  }
  for (int r = 0; r < rows; r++) {
    quad total = totals(sums[r]);
    for (int rest = i; rest < of->k; rest++)
      for (int j = 0; j < columns; j++) total[j] += a[r * of->lda + rest] * b[j * of->ldb + rest];
    memcpy(c + r * of->ldc, &total, columns * sizeof(float));
  }
}

/* Rows `row` to `end` of columns `first` to `last`, in tiles of nearly equal height. */
static void multiply(const operands *of, int row, int end, int first, int last) {
  while (row < end) {
    int left = end - row, rows = left / ((left + TILE_ROWS - 1) / TILE_ROWS), j = first;
    const float *a = of->a + row * of->lda;
    float *c = of->c + row * of->ldc;
#define WHOLE_TILE(count) tile(count, TILE_WIDTH, of, a, of->b + j * of->ldb, c + j)
#define ONE_COLUMN(count) tile(count, 1, of, a, of->b + j * of->ldb, c + j)
    for (; j + TILE_WIDTH <= last; j += TILE_WIDTH) WITH_ROWS(rows, WHOLE_TILE)
    for (; j < last; j++) WITH_ROWS(rows, ONE_COLUMN)
    row += rows;
  }
}

typedef struct {
  work work; /* A piece is a tile's columns. */
  const operands *of;
} by_rows;

static void run(const work *work, int first, int last) {
  const operands *of = ((const by_rows *)work)->of;
  int end = last * TILE_WIDTH < of->n ? last * TILE_WIDTH : of->n;
  for (int row = 0; row < of->m; row += BLOCK_ROWS)
    multiply(of, row, of->m - row < BLOCK_ROWS ? of->m : row + BLOCK_ROWS, first * TILE_WIDTH, end);
}

void burstgate_product_by_rows(const operands *of, int threads) {
  int pieces = (of->n + TILE_WIDTH - 1) / TILE_WIDTH, share = burstgate_share_of(pieces, threads);
  by_rows all = {.work = {.run = run, .count = pieces, .share = share < MOST_PIECES ? share : MOST_PIECES}, .of = of};
  burstgate_run(&all.work, threads);
}
