/*
 * A product by a weight for processors on which OpenBLAS chooses its kernels by the number of rows.
 *
 * It owns one promise: every output is one chain of multiply-adds over k, from the first to the last, whatever else is
 * computed beside it. So neither the number of rows, nor a row's place, nor the split among threads can change a bit.
 * The weight is read once for all rows: a few of its rows at a time are transposed into a buffer that fits the first
 * cache, and tiles of rows are multiplied with that in registers.
 */
#include "weight_product.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

#if defined(__AVX512F__)
#define LANES 16
#define TILE_ROWS 12
#elif defined(__AVX2__)
#define LANES 8
#define TILE_ROWS 6
#else
#define LANES 4
#define TILE_ROWS 4
#endif
#define PANEL (2 * LANES) /* Columns of the product that are computed together. */
#define DEPTH 256         /* Of k at a time: a panel of so many fits the first cache. */

typedef float lanes __attribute__((vector_size(LANES * 4)));

/* One rounding where the processor has it, in every tile alike. */
static inline lanes multiply_add(lanes x, lanes y, lanes sum) {
#if defined(__AVX512F__)
  return (lanes)_mm512_fmadd_ps((__m512)x, (__m512)y, (__m512)sum);
#elif defined(__AVX2__) && defined(__FMA__)
  return (lanes)_mm256_fmadd_ps((__m256)x, (__m256)y, (__m256)sum);
#else
  return sum + x * y;
#endif
}

static inline lanes load(const float *from) {
  lanes x;
  memcpy(&x, from, sizeof x);
  return x;
}

static inline void store(float *to, lanes x) { memcpy(to, &x, sizeof x); }

#if defined(__AVX2__)
/* Eight rows of eight floats, from rows `ldb` apart, to columns in rows of PANEL. */
static inline void transpose8(const float *b, size_t ldb, float *to) {
  __m256 row[8], pair[8], four[8];
  for (int i = 0; i < 8; i++) row[i] = _mm256_loadu_ps(b + i * ldb);
  for (int i = 0; i < 8; i += 2) {
    pair[i] = _mm256_unpacklo_ps(row[i], row[i + 1]);
    pair[i + 1] = _mm256_unpackhi_ps(row[i], row[i + 1]);
  }
  for (int i = 0; i < 8; i += 4) {
    four[i] = _mm256_shuffle_ps(pair[i], pair[i + 2], 0x44);
    four[i + 1] = _mm256_shuffle_ps(pair[i], pair[i + 2], 0xee);
    four[i + 2] = _mm256_shuffle_ps(pair[i + 1], pair[i + 3], 0x44);
    four[i + 3] = _mm256_shuffle_ps(pair[i + 1], pair[i + 3], 0xee);
  }
  for (int i = 0; i < 4; i++) {
    _mm256_storeu_ps(to + i * PANEL, _mm256_permute2f128_ps(four[i], four[i + 4], 0x20));
    _mm256_storeu_ps(to + (i + 4) * PANEL, _mm256_permute2f128_ps(four[i], four[i + 4], 0x31));
  }
}
#endif

/* Columns `columns` of a panel from `depth` floats of as many rows of the weight; columns that are missing are zero. */
static void pack(int columns, int depth, const float *b, size_t ldb, float *panel) {
  int done = 0;
#if defined(__AVX2__)
  int whole = depth / 8 * 8;
  for (; done + 8 <= columns; done += 8)
    for (int i = 0; i < whole; i += 8) transpose8(b + done * ldb + i, ldb, panel + (size_t)i * PANEL + done);
  for (int j = 0; j < done; j++)
    for (int i = whole; i < depth; i++) panel[(size_t)i * PANEL + j] = b[j * ldb + i];
#endif
  for (int j = done; j < columns; j++)
    for (int i = 0; i < depth; i++) panel[(size_t)i * PANEL + j] = b[j * ldb + i];
  for (int j = columns; j < PANEL; j++)
    for (int i = 0; i < depth; i++) panel[(size_t)i * PANEL + j] = 0;
}

/* Goes on with the sums of a tile. Inlined with a constant number of rows, so that they stay in registers. */
static inline __attribute__((always_inline)) void tile(const int rows, int depth, const float *a, size_t lda,
                                                       const float *panel, float *c, size_t ldc) {
  lanes sums[TILE_ROWS][2];
  for (int r = 0; r < rows; r++) {
    sums[r][0] = load(c + r * ldc);
    sums[r][1] = load(c + r * ldc + LANES);
  }
  for (int i = 0; i < depth; i++) {
    lanes left = load(panel + (size_t)i * PANEL), right = load(panel + (size_t)i * PANEL + LANES);
    for (int r = 0; r < rows; r++) {
      lanes factor = a[r * lda + i] - (lanes){0};
      sums[r][0] = multiply_add(factor, left, sums[r][0]);
      sums[r][1] = multiply_add(factor, right, sums[r][1]);
    }
  }
  for (int r = 0; r < rows; r++) {
    store(c + r * ldc, sums[r][0]);
    store(c + r * ldc + LANES, sums[r][1]);
  }
}

static void any_tile(int rows, int depth, const float *a, size_t lda, const float *panel, float *c, size_t ldc) {
  switch (rows) {
#define TILE(count) \
  case count: tile(count, depth, a, lda, panel, c, ldc); break;
    TILE(1) TILE(2) TILE(3) TILE(4)
#if TILE_ROWS >= 6
    TILE(5) TILE(6)
#endif
#if TILE_ROWS >= 12
    TILE(7) TILE(8) TILE(9) TILE(10) TILE(11) TILE(12)
#endif
#undef TILE
  }
}

typedef struct {
  int m, n, k;
  const float *a, *b;
  size_t lda, ldb, ldc;
  float *c;
  atomic_int next;   /* Panel that nobody has taken. */
  atomic_int failed; /* Whether memory ran out. */
} job;

/* All rows of the product's columns from `first` on, as many as a panel has. `scratch`: a panel and the rows of one. */
static void multiply_panel(const job *work, int first, float *scratch) {
  int columns = work->n - first < PANEL ? work->n - first : PANEL;
  float *panel = scratch, *sums = work->c + first;
  size_t stride = work->ldc;
  if (columns < PANEL) sums = scratch + DEPTH * PANEL, stride = PANEL;
  for (int r = 0; r < work->m; r++) memset(sums + r * stride, 0, PANEL * sizeof(float));
  for (int from = 0; from < work->k; from += DEPTH) {
    int depth = work->k - from < DEPTH ? work->k - from : DEPTH;
    pack(columns, depth, work->b + first * work->ldb + from, work->ldb, panel);
    for (int r = 0; r < work->m; r += TILE_ROWS) {
      int rows = work->m - r < TILE_ROWS ? work->m - r : TILE_ROWS;
      any_tile(rows, depth, work->a + r * work->lda + from, work->lda, panel, sums + r * stride, stride);
    }
  }
  if (columns < PANEL)
    for (int r = 0; r < work->m; r++) memcpy(work->c + r * work->ldc + first, sums + r * PANEL, columns * sizeof(float));
}

/* Takes panels until none is left. Whoever is held up keeps nothing but the panel it is at from the others. */
static void work_on(job *work) {
  float *scratch = NULL;
  for (;;) {
    int first = atomic_fetch_add_explicit(&work->next, PANEL, memory_order_relaxed);
    if (first >= work->n) break;
    if (!scratch && posix_memalign((void **)&scratch, 64, (DEPTH + (size_t)work->m) * PANEL * sizeof(float))) {
      atomic_store(&work->failed, 1);
      break;
    }
    multiply_panel(work, first, scratch);
  }
  free(scratch);
}

/* Threads that help whoever multiplies; one product at a time has their help. */
#define SPINS 4000 /* Pauses before a helper sleeps: about as long as what lies between two products of a forward. */

static struct {
  pthread_mutex_t taken, lock;
  pthread_cond_t wake;
  pthread_once_t once;
  int threads;
  atomic_uint products; /* Counts up with every product, which is what helpers wait for. */
  atomic_int sleeping;  /* Helpers that must be woken. */
  atomic_int inside;    /* Helpers that may be reading the job. */
  _Atomic(job *) open;
} pool = {.taken = PTHREAD_MUTEX_INITIALIZER,
          .lock = PTHREAD_MUTEX_INITIALIZER,
          .wake = PTHREAD_COND_INITIALIZER,
          .once = PTHREAD_ONCE_INIT};

static inline void pause_for_a_moment(void) {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ __volatile__("yield");
#endif
}

static unsigned wait_for_more_than(unsigned seen) {
  for (int i = 0; i < SPINS; i++) {
    unsigned now = atomic_load(&pool.products);
    if (now != seen) return now;
    pause_for_a_moment();
  }
  pthread_mutex_lock(&pool.lock);
  atomic_fetch_add(&pool.sleeping, 1);
  while (atomic_load(&pool.products) == seen) pthread_cond_wait(&pool.wake, &pool.lock);
  atomic_fetch_sub(&pool.sleeping, 1);
  pthread_mutex_unlock(&pool.lock);
  return atomic_load(&pool.products);
}

static void *help(void *unused) {
  (void)unused;
  unsigned seen = 0;
  for (;;) {
    seen = wait_for_more_than(seen);
    /* Announced before the job is looked at: its owner closes it first and then waits for whoever is inside. */
    atomic_fetch_add(&pool.inside, 1);
    job *work = atomic_load(&pool.open);
    if (work) work_on(work);
    atomic_fetch_sub(&pool.inside, 1);
  }
  return NULL;
}

static void start_helpers(void) {
  for (int i = 1; i < pool.threads; i++) {
    pthread_t thread;
    if (pthread_create(&thread, NULL, help, NULL)) return;
    pthread_detach(thread);
  }
}

static void call_helpers(job *work) {
  atomic_store(&pool.open, work);
  atomic_fetch_add(&pool.products, 1);
  if (!atomic_load(&pool.sleeping)) return;
  pthread_mutex_lock(&pool.lock);
  pthread_cond_broadcast(&pool.wake);
  pthread_mutex_unlock(&pool.lock);
}

static void wait_for_helpers(void) {
  atomic_store(&pool.open, NULL);
  for (int i = 0; atomic_load(&pool.inside); i++) i < SPINS ? pause_for_a_moment() : (void)sched_yield();
}

int burstgate_weight_product(int m, int n, int k, const float *a, int lda, const float *b, int ldb, float *c, int ldc,
                             int threads) {
  job work = {.m = m, .n = n, .k = k, .a = a, .b = b, .lda = lda, .ldb = ldb, .ldc = ldc, .c = c};
  int helped = threads > 1 && n > PANEL && !pthread_mutex_trylock(&pool.taken);
  if (helped) {
    pool.threads = pool.threads ? pool.threads : threads;
    pthread_once(&pool.once, start_helpers);
    call_helpers(&work);
  }
  work_on(&work);
  if (helped) {
    wait_for_helpers();
    pthread_mutex_unlock(&pool.taken);
  }
  return !atomic_load(&work.failed);
}
