/*
 * Threads that help whoever multiplies; one product at a time has their help.
 *
 * Between products they wait awake, since being woken takes longer than many products; the fewer there are the shorter,
 * since who waits awake keeps its core from whoever builds the next operations, one of a few cores or one of many.
 */
#include "helpers.h"

#include <pthread.h>
#include <sched.h>
#include <stddef.h>
#include <stdint.h>

#define PAUSES_A_HELPER 500 /* Before a helper sleeps, for each that there is. */
#define MOST_PAUSES 4000    /* About as long as what lies between two products of a forward. */

static struct {
  pthread_mutex_t taken, lock;
  pthread_cond_t wake;
  pthread_once_t once;
  int threads;
  atomic_uint products; /* Counts up with every product, which is what helpers wait for. */
  atomic_int sleeping;  /* Helpers that must be woken. */
  atomic_int inside;    /* Helpers that may be reading the work. */
  _Atomic(work *) open;
} pool = {.taken = PTHREAD_MUTEX_INITIALIZER,
          .lock = PTHREAD_MUTEX_INITIALIZER,
          .wake = PTHREAD_COND_INITIALIZER,
          .once = PTHREAD_ONCE_INIT};

static int first_of(const work *work, int part) { return (int)((long)work->count * part / work->parts); }

/* Takes shares until none is left. Whoever is held up keeps nothing but the one it is at from the others. */
static void work_on(work *work, int thread) {
  for (int turn = 0; turn < work->parts; turn++) {
    int part = (thread + turn) % work->parts, end = first_of(work, part + 1);
    for (;;) {
      int first = atomic_fetch_add_explicit(&work->next[part], work->share, memory_order_relaxed);
      if (first >= end) break;
      work->run(work, first, end - first < work->share ? end : first + work->share);
    }
  }
}

static inline void pause_for_a_moment(void) {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ __volatile__("yield");
#endif
}

static int pauses(void) {
  int all = PAUSES_A_HELPER * (pool.threads - 1);
  return all < MOST_PAUSES ? all : MOST_PAUSES;
}

static unsigned wait_for_more_than(unsigned seen) {
  for (int left = pauses(); left > 0; left--) {
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

static void *help(void *number) {
  unsigned seen = 0;
  for (;;) {
    seen = wait_for_more_than(seen);
    /* Announced before the work is looked at: its owner closes it first and then waits for whoever is inside. */
    atomic_fetch_add(&pool.inside, 1);
    work *open = atomic_load(&pool.open);
    if (open) work_on(open, (int)(intptr_t)number);
    atomic_fetch_sub(&pool.inside, 1);
  }
  return NULL;
}

static void start_helpers(void) {
  for (int i = 1; i < pool.threads; i++) {
    pthread_t thread;
    if (pthread_create(&thread, NULL, help, (void *)(intptr_t)i)) return;
    pthread_detach(thread);
  }
}

static void call_helpers(work *work) {
  atomic_store(&pool.open, work);
  atomic_fetch_add(&pool.products, 1);
  if (!atomic_load(&pool.sleeping)) return;
  pthread_mutex_lock(&pool.lock);
  pthread_cond_broadcast(&pool.wake);
  pthread_mutex_unlock(&pool.lock);
}

static void wait_for_helpers(void) {
  atomic_store(&pool.open, NULL);
  for (int left = pauses(); atomic_load(&pool.inside); left--) left > 0 ? pause_for_a_moment() : (void)sched_yield();
}

int burstgate_share_of(int count, int threads) {
  int share = count / (4 * (threads > 1 ? threads : 1));
  return share > 1 ? share : 1;
}

void burstgate_run(work *work, int threads) {
  work->parts = threads < 1 ? 1 : threads < MOST_PARTS ? threads : MOST_PARTS;
  for (int part = 0; part < work->parts; part++) atomic_init(&work->next[part], first_of(work, part));
  int helped = threads > 1 && work->count > work->share && !pthread_mutex_trylock(&pool.taken);
  if (helped) {
    pool.threads = pool.threads ? pool.threads : threads;
    pthread_once(&pool.once, start_helpers);
    call_helpers(work);
  }
  work_on(work, 0);
  if (helped) {
    wait_for_helpers();
    pthread_mutex_unlock(&pool.taken);
  }
}
