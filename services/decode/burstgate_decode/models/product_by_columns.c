/*
 * A product by values, whose columns are those of the product.
 *
 * It owns one promise: an output is one chain of multiply-adds over k from the first to the last. So neither the number
 * of rows, nor a row's place, nor the split among threads can change a bit, and values that are weighed with zero, as those
 * of masked keys are, change nothing.
 */
#include "helpers.h"
#include "lanes.h"
#include "products.h"

static inline __attribute__((always_inline)) void tile(const int rows, const int vectors, const operands *of,
                                                       const float *a, const float *b, float *c) {
  lanes sums[TILE_ROWS][TILE_WIDTH];
  for (int r = 0; r < rows; r++)
    for (int v = 0; v < vectors; v++) sums[r][v] = (lanes){0};
  for (int i = 0; i < of->k; i++) {
    lanes values[TILE_WIDTH];
    for (int v = 0; v < vectors; v++) values[v] = load(b + i * of->ldb + v * LANES);
    for (int r = 0; r < rows; r++) {
      lanes weight = a[r * of->lda + i] - (lanes){0};
      for (int v = 0; v < vectors; v++) sums[r][v] = multiply_add(weight, values[v], sums[r][v]);
    }
  }
  for (int r = 0; r < rows; r++) memcpy(c + r * of->ldc, sums[r], vectors * sizeof(lanes));
}

static void one_column(int rows, const operands *of, const float *a, const float *b, float *c) {
  for (int r = 0; r < rows; r++) {
    float total = 0;
    for (int i = 0; i < of->k; i++) total += a[r * of->lda + i] * b[i * of->ldb];
    c[r * of->ldc] = total;
  }
}

/* So many rows of columns `first` to `last`. */
static void multiply(const operands *of, int rows, const float *a, float *c, int first, int last) {
  int j = first;
#define WHOLE_TILE(count) tile(count, TILE_WIDTH, of, a, of->b + j, c + j)
#define ONE_VECTOR(count) tile(count, 1, of, a, of->b + j, c + j)
  for (; j + TILE_WIDTH * LANES <= last; j += TILE_WIDTH * LANES) WITH_ROWS(rows, WHOLE_TILE)
  for (; j + LANES <= last; j += LANES) WITH_ROWS(rows, ONE_VECTOR)
  for (; j < last; j++) one_column(rows, of, a, of->b + j, c + j);
}

typedef struct {
  work work; /* A piece is a tile. */
  const operands *of;
  int down; /* Tiles that lie below each other. */
} by_columns;

static void run(const work *work, int first, int last) {
  const by_columns *all = (const by_columns *)work;
  const operands *of = all->of;
  for (int piece = first; piece < last; piece++) {
    int row = piece % all->down * TILE_ROWS, column = piece / all->down * TILE_WIDTH * LANES;
    int rows = of->m - row < TILE_ROWS ? of->m - row : TILE_ROWS;
    int end = of->n - column < TILE_WIDTH * LANES ? of->n : column + TILE_WIDTH * LANES;
    multiply(of, rows, of->a + row * of->lda, of->c + row * of->ldc, column, end);
  }
}

void burstgate_product_by_columns(const operands *of, int threads) {
  int down = (of->m + TILE_ROWS - 1) / TILE_ROWS;
  int across = (of->n + TILE_WIDTH * LANES - 1) / (TILE_WIDTH * LANES), pieces = down * across;
  by_columns all = {
      .work = {.run = run, .count = pieces, .share = burstgate_share_of(pieces, threads)}, .of = of, .down = down};
  burstgate_run(&all.work, threads);
}
