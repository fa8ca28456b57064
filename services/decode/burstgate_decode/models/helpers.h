/* Threads that help whoever multiplies. */
#ifndef BURSTGATE_HELPERS_H
#define BURSTGATE_HELPERS_H

#include <stdatomic.h>

#define MOST_PARTS 64 /* As many threads as OpenBLAS has; more would share parts. */

/* The first member of what a product needs to know: `count` pieces, which threads take `share` at a time, each of a
 * part of its own as long as that lasts, so that what it takes next lies behind what it has. */
typedef struct work {
  void (*run)(const struct work *work, int first, int last);
  int count, share, parts;
  atomic_int next[MOST_PARTS]; /* Of each part the first piece that nobody has taken. */
} work;

/* How many of `count` pieces make some shares for each thread, so that one that is held up delays the others by little. */
int burstgate_share_of(int count, int threads);

/* Runs all pieces, with the help of threads unless they help somebody else or there is only one share. `threads`, the
 * caller's own among them, is heeded by the first call of the process. */
void burstgate_run(work *work, int threads);

#endif
