/*
 * Threads that help whoever multiplies; one product at a time has their help.
 *
 * Between the products of a forward they wait awake, since being woken takes longer than most products.
 */
#include "helpers.h"

#include <pthread.h>
#include <sched.h>
#include <stddef.h>

#define SPINS 4000 /* Pauses before a helper sleeps: about as long as what lies between two products of a forward. */

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

/* Takes shares until none is left. Whoever is held up keeps nothing but the one it is at from the others. */
static void work_on(work *work) {
  for (;;) {
    int first = atomic_fetch_add_explicit(&work->next, work->share, memory_order_relaxed);
    if (first >= work->count) return;
    work->run(work, first, work->count - first < work->share ? work->count : first + work->share);
  }
}

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
    /* Announced before the work is looked at: its owner closes it first and then waits for whoever is inside. */
    atomic_fetch_add(&pool.inside, 1);
    work *open = atomic_load(&pool.open);
    if (open) work_on(open);
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
  for (int i = 0; atomic_load(&pool.inside); i++) i < SPINS ? pause_for_a_moment() : (void)sched_yield();
}

int burstgate_share_of(int count, int threads) {
  int share = count / (4 * (threads > 1 ? threads : 1));
  return share > 1 ? share : 1;
}

void burstgate_run(work *work, int threads) {
  int helped = threads > 1 && work->count > work->share && !pthread_mutex_trylock(&pool.taken);
  if (helped) {
    pool.threads = pool.threads ? pool.threads : threads;
    pthread_once(&pool.once, start_helpers);
    call_helpers(work);
  }
  work_on(work);
  if (helped) {
    wait_for_helpers();
    pthread_mutex_unlock(&pool.taken);
  }
}
