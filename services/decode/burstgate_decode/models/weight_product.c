/*
 * A product by a weight, each of whose rows has the same bits whatever rows are computed beside it.
 *
 * It owns one promise: an output is one chain of multiply-adds for each lane of a vector, over k from the first to the
 * last, and the lanes are added in one order. So neither the number of rows, nor a row's place, nor the split among
 * threads can change a bit. Rows of both factors are read as they lie, so that nothing is repacked: a weight comes from
 * memory once and meets all rows while it is in a cache.
 */
#include "weight_product.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stddef.h>
#include <string.h>

#if defined(__AVX2__)
#include <immintrin.h>
#elif defined(__ARM_FEATURE_FMA)
#include <arm_neon.h>
#endif

/* So many rows of sums as the registers hold beside what is multiplied. */
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
#define TILE_COLUMNS 4 /* The lanes of so many sums are added at a time. */
#define BLOCK_ROWS 24  /* Rows that stay in a cache while a thread's columns go by. */
#define MOST_COLUMNS 32 /* Columns that a thread takes at a time: so much of a weight fits the second cache. */

typedef float lanes __attribute__((vector_size(LANES * 4)));
typedef float octet __attribute__((vector_size(32)));
typedef float quad __attribute__((vector_size(16)));

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

typedef struct {
  int m, n, k, share;
  const float *a, *b;
  size_t lda, ldb, ldc;
  float *c;
  atomic_int next; /* Column that nobody has taken. */
} job;

/* Inlined with constant numbers of rows and columns, so that the sums stay in registers. */
static inline __attribute__((always_inline)) void tile(const int rows, const int columns, const job *work, const float *a,
                                                       const float *b, float *c) {
  lanes sums[TILE_ROWS][TILE_COLUMNS] = {0};
  int i = 0;
  for (; i + LANES <= work->k; i += LANES) {
    lanes x[TILE_ROWS];
    for (int r = 0; r < rows; r++) x[r] = load(a + r * work->lda + i);
    for (int j = 0; j < columns; j++) {
      lanes weight = load(b + j * work->ldb + i);
      for (int r = 0; r < rows; r++) sums[r][j] = multiply_add(x[r], weight, sums[r][j]);
    }
  }
  for (int r = 0; r < rows; r++) {
    quad total = totals(sums[r]);
    for (int rest = i; rest < work->k; rest++)
      for (int j = 0; j < columns; j++) total[j] += a[r * work->lda + rest] * b[j * work->ldb + rest];
    memcpy(c + r * work->ldc, &total, columns * sizeof(float));
  }
}

static inline __attribute__((always_inline)) void any_tile(int rows, const int columns, const job *work,
                                                           const float *a, const float *b, float *c) {
  switch (rows) {
#define TILE(count) \
  case count: tile(count, columns, work, a, b, c); break;
    TILE(1) TILE(2) TILE(3)
#if TILE_ROWS >= 6
    TILE(4) TILE(5) TILE(6)
#endif
#undef TILE
  }
}

/* Rows `row` to `end` of columns `first` to `last`, in tiles of nearly equal height. */
static void multiply(const job *work, int row, int end, int first, int last) {
  for (int tiles = (end - row + TILE_ROWS - 1) / TILE_ROWS; tiles > 0; tiles--) {
    int rows = (end - row) / tiles, j = first;
    const float *a = work->a + row * work->lda;
    float *c = work->c + row * work->ldc;
    for (; j + TILE_COLUMNS <= last; j += TILE_COLUMNS)
      any_tile(rows, TILE_COLUMNS, work, a, work->b + j * work->ldb, c + j);
    for (; j < last; j++) any_tile(rows, 1, work, a, work->b + j * work->ldb, c + j);
    row += rows;
  }
}

/* Takes columns until none is left. Whoever is held up keeps nothing but those it is at from the others. */
static void work_on(job *work) {
  for (;;) {
    int first = atomic_fetch_add_explicit(&work->next, work->share, memory_order_relaxed);
    if (first >= work->n) return;
    int last = work->n - first < work->share ? work->n : first + work->share;
    for (int row = 0; row < work->m; row += BLOCK_ROWS)
      multiply(work, row, work->m - row < BLOCK_ROWS ? work->m : row + BLOCK_ROWS, first, last);
  }
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

/* Some shares for each thread, so that one that is held up delays the others by little. */
static int columns_at_a_time(int n, int threads) {
  int share = n / (4 * threads) / TILE_COLUMNS * TILE_COLUMNS;
  return share < TILE_COLUMNS ? TILE_COLUMNS : share > MOST_COLUMNS ? MOST_COLUMNS : share;
}

void burstgate_weight_product(int m, int n, int k, const float *a, int lda, const float *b, int ldb, float *c, int ldc,
                              int threads) {
  int share = columns_at_a_time(n, threads > 1 ? threads : 1);
  job work = {.m = m, .n = n, .k = k, .share = share, .a = a, .b = b, .lda = lda, .ldb = ldb, .ldc = ldc, .c = c};
  int helped = threads > 1 && n > share && !pthread_mutex_trylock(&pool.taken);
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
}
