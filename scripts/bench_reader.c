/* How fast threads read memory together: `bench_reader THREADS BYTES SWEEPS` prints bytes a second,
 * the best of so many sweeps in each way.
 *
 * Each thread reads its own share, 64 bytes at a time; a compiler for a CPU with AVX-512 makes
 * that one load each. It does so in 1, 2, 4 and 8 places at once, as which is fastest differs
 * between CPUs. Nothing is computed that could be the limit: the words are or-ed into one
 * register a stream. Huge pages, where the system grants them, spare the walks through page tables.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

/* Streams lie SKEW lines, or twice or four times as many, apart from a multiple of a page: else the
 * lines of all share a set of the cache. */
enum { MOST_STREAMS = 8, WAYS = 4, SKEW = 17, MAX_THREADS = 1024 };

typedef uint64_t line __attribute__((vector_size(64)));

struct share {
  line *lines;
  size_t count; /* a multiple of MOST_STREAMS */
  int sweeps;
  uint64_t seen;
  double start, end; /* of the latest sweep, by its own clock: the main thread may wake late */
};

static pthread_barrier_t gate;

static double seconds(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* Inlined with a constant, so that each stream has a register. */
static inline __attribute__((always_inline)) uint64_t read_streams(const line *lines, size_t count,
                                                                   int streams) {
  line seen[MOST_STREAMS] = {{0}};
  const size_t step = count / streams;
  for (size_t i = 0; i < step; i++)
    for (int s = 0; s < streams; s++) seen[s] |= lines[s * step + i];
  uint64_t all = 0;
  for (int s = 0; s < streams; s++)
    for (int word = 0; word < 8; word++) all |= seen[s][word];
  return all;
}

static uint64_t read_1(const line *lines, size_t count) { return read_streams(lines, count, 1); }
static uint64_t read_2(const line *lines, size_t count) { return read_streams(lines, count, 2); }
static uint64_t read_4(const line *lines, size_t count) { return read_streams(lines, count, 4); }
static uint64_t read_8(const line *lines, size_t count) { return read_streams(lines, count, 8); }

static uint64_t (*const ways[WAYS])(const line *, size_t) = {read_1, read_2, read_4, read_8};

static void *work(void *argument) {
  struct share *share = argument;
  memset(share->lines, 1, share->count * sizeof(line)); /* its reader places a page */
  for (int i = 0; i < share->sweeps * WAYS; i++) {
    pthread_barrier_wait(&gate); /* all begin together */
    share->start = seconds();
    share->seen |= ways[i % WAYS](share->lines, share->count);
    share->end = seconds();
    pthread_barrier_wait(&gate); /* the main thread may look */
  }
  return NULL;
}

static double spent(const struct share *shares, int threads) {
  double start = shares[0].start, end = shares[0].end;
  for (int i = 1; i < threads; i++) {
    if (shares[i].start < start) start = shares[i].start;
    if (shares[i].end > end) end = shares[i].end;
  }
  return end - start;
}

int main(int argc, char **argv) {
  const int threads = argc == 4 ? atoi(argv[1]) : 0;
  const size_t bytes = argc == 4 ? strtoull(argv[2], NULL, 10) : 0;
  const int sweeps = argc == 4 ? atoi(argv[3]) : 0;
  if (threads < 1 || threads > MAX_THREADS || bytes < sizeof(line) || sweeps < 1) {
    fprintf(stderr, "usage: bench_reader THREADS BYTES SWEEPS\n");
    return 2;
  }
  const size_t count = (bytes / sizeof(line) / threads / MOST_STREAMS + SKEW) * MOST_STREAMS;
  const size_t total = count * threads * sizeof(line);
  line *lines = mmap(NULL, total, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (lines == MAP_FAILED) {
    fprintf(stderr, "bench_reader: no memory for %zu bytes\n", bytes);
    return 1;
  }
#ifdef MADV_HUGEPAGE
  madvise(lines, total, MADV_HUGEPAGE);
#endif
  static struct share shares[MAX_THREADS];
  static pthread_t workers[MAX_THREADS];
  pthread_barrier_init(&gate, NULL, threads + 1);
  for (int i = 0; i < threads; i++) {
    shares[i] = (struct share){.lines = lines + i * count, .count = count, .sweeps = sweeps};
    if (pthread_create(&workers[i], NULL, work, &shares[i]) != 0) {
      fprintf(stderr, "bench_reader: cannot start thread %d\n", i + 1);
      return 1;
    }
  }
  double fastest = 1e30;
  for (int i = 0; i < sweeps * WAYS; i++) {
    pthread_barrier_wait(&gate);
    pthread_barrier_wait(&gate);
    const double now = spent(shares, threads);
    if (now < fastest) fastest = now;
  }
  uint64_t seen = 0;
  for (int i = 0; i < threads; i++) {
    pthread_join(workers[i], NULL);
    seen |= shares[i].seen;
  }
  if (seen != 0x0101010101010101u) { /* also keeps the reads from being left out */
    fprintf(stderr, "bench_reader: read what was not written\n");
    return 1;
  }
  printf("%.0f\n", (double)total / fastest);
  return 0;
}
