/*
 * A product by a weight or by keys, whose rows lie in memory as the columns of the product.
 *
 * It owns one promise: an output is one chain of multiply-adds for each lane of a vector, over k from the first to the
 * last, and the lanes are added in one order. So neither the number of rows, nor a row's place, nor the split among
 * threads can change a bit. Rows of both factors are read as they lie, so that nothing is repacked: a weight comes from
 * memory once, while the columns before it are multiplied, and meets all rows of a block while it is in a cache.
 */
#include "helpers.h"
#include "lanes.h"
#include "products.h"

#define BLOCK_ROWS 48 /* Rows that stay in a cache while a thread's columns go by. */
#define STEP_BYTES (TILE_WIDTH * LANES * (int)sizeof(float)) /* That a tile reads of a weight in one step over k. */
#define LINE_BYTES 64
#define LINES (STEP_BYTES / LINE_BYTES)
#define MOST_PIECES 8 /* That a thread takes at a time: so much of a weight fits the second cache. */

typedef float octet __attribute__((vector_size(32)));
typedef float quad __attribute__((vector_size(16)));

static inline int smaller(int x, int y) { return x < y ? x : y; }

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

/* Meanwhile fetches `lines` from `ahead` on in each step over k, and then goes on by `stride` bytes. */
static inline __attribute__((always_inline)) void tile(const int rows, const int columns, const operands *of,
                                                       const float *a, const float *b, float *c, const char *ahead,
                                                       const int lines, int stride) {
  lanes sums[TILE_ROWS][TILE_WIDTH];
  for (int r = 0; r < rows; r++)
    for (int j = 0; j < columns; j++) sums[r][j] = (lanes){0};
  int i = 0;
  for (; i + LANES <= of->k; i += LANES, ahead += stride) {
    for (int line = 0; line < lines; line++) __builtin_prefetch(ahead + line * LINE_BYTES, 0, 2);
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

/* Rows `row` to `end` of the columns from `j` on, TILE_WIDTH or fewer, in tiles of nearly equal height. */
static void multiply(const operands *of, int row, int end, int j, int columns) {
  int tiles = (end - row + TILE_ROWS - 1) / TILE_ROWS, next = j + TILE_WIDTH, stride = STEP_BYTES / tiles;
  const float *b = of->b + j * of->ldb;
  /* What this thread mostly reads next. Memory gives it as evenly as the tiles ask for it. */
  const char *ahead = (const char *)(next + TILE_WIDTH <= of->n ? of->b + next * of->ldb : b);
  for (; row < end; tiles--) {
    int rows = (end - row) / tiles;
    const float *a = of->a + row * of->lda;
    float *c = of->c + row * of->ldc + j;
#define BUSY_TILE(count) tile(count, TILE_WIDTH, of, a, b, c, ahead, LINES, stride)
#define CALM_TILE(count) tile(count, TILE_WIDTH, of, a, b, c, ahead, 1, stride)
#define ONE_COLUMN(count) tile(count, 1, of, a, b + left * of->ldb, c + left, ahead, 0, 0)
    if (columns < TILE_WIDTH)
      for (int left = 0; left < columns; left++) WITH_ROWS(rows, ONE_COLUMN)
    else if (stride > LINE_BYTES)
      WITH_ROWS(rows, BUSY_TILE)
    else
      WITH_ROWS(rows, CALM_TILE)
    row += rows;
    ahead += stride * (of->k / LANES);
  }
}

typedef struct {
  work work; /* A piece is a tile's columns. */
  const operands *of;
} by_rows;

static void run(const work *work, int first, int last) {
  const operands *of = ((const by_rows *)work)->of;
  for (int row = 0; row < of->m; row += BLOCK_ROWS)
    for (int piece = first; piece < last; piece++) {
      int j = piece * TILE_WIDTH;
      multiply(of, row, smaller(of->m, row + BLOCK_ROWS), j, smaller(of->n - j, TILE_WIDTH));
    }
}

void burstgate_product_by_rows(const operands *of, int threads) {
  int pieces = (of->n + TILE_WIDTH - 1) / TILE_WIDTH, share = burstgate_share_of(pieces, threads);
  by_rows all = {.work = {.run = run, .count = pieces, .share = share < MOST_PIECES ? share : MOST_PIECES}, .of = of};
  burstgate_run(&all.work, threads);
}
