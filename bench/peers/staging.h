/* What the peers of `samite bench staging` share: a writer (rank 0) and a reader (rank 1) that are
 * programs of their own, steps whose values know their place, and the memory of all processes.
 *
 * A step is one array of doubles, rows x columns, of a power of two of bytes: the columns are the
 * smallest power of two that is not below the rows. A slab is one in a hundred of its columns, from a
 * third of the way on. A writer fills its array once and gives the same one in every step; the reader
 * has an array of its own, which is overwritten. A window is STEPS steps, at the end of which both meet.
 */
#ifndef SAMITE_BENCH_STAGING_H
#define SAMITE_BENCH_STAGING_H

#include "peer.h"
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/stat.h>

enum { STEPS = 4 };

static int rank;

/* The fifos between both ranks. */
static int there, back;

static inline int fifo(const char *dir, const char *name)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    if (mkfifo(path, 0600) && errno != EEXIST)
        die(path);
    /* For both directions, so that opening waits for nobody. */
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0)
        die(path);
    return fd;
}

static inline void acquaint(const char *dir)
{
    there = fifo(dir, rank == 0 ? "meet.01" : "meet.10");
    back = fifo(dir, rank == 0 ? "meet.10" : "meet.01");
}

/* Both ranks give a number and get that of the other one. */
static inline double meet(double mine)
{
    double other;
    if (write(there, &mine, sizeof mine) != sizeof mine || read(back, &other, sizeof other) != sizeof other)
        die("meet");
    return other;
}

struct shape {
    size_t rows, columns;
    size_t first, width; /* of the columns that are read */
};

/* 0 where the bytes are no power of two. */
static inline int shape(const struct command *k, int is_slab, struct shape *s)
{
    size_t count = (size_t)k->bytes / sizeof(double);
    if (k->bytes < (long)sizeof(double) || (k->bytes & (k->bytes - 1)))
        return 0;
    for (s->columns = 1; s->columns * s->columns < count; s->columns *= 2)
        ;
    s->rows = count / s->columns;
    s->first = is_slab ? s->columns / 3 : 0;
    s->width = is_slab ? (s->columns + 50) / 100 : s->columns;
    return s->width > 0;
}

/* Exact in a double, different at every place. */
static inline double value_at(const struct shape *s, size_t row, size_t column, unsigned seed)
{
    return (double)(row * s->columns + column) + (double)seed * 0x1p40;
}

static inline void fill_step(double *all, const struct shape *s, unsigned seed)
{
    for (size_t row = 0; row < s->rows; row++)
        for (size_t column = 0; column < s->columns; column++)
            all[row * s->columns + column] = value_at(s, row, column, seed);
}

static inline int is_step(const double *part, const struct shape *s, unsigned seed)
{
    for (size_t row = 0; row < s->rows; row++)
        for (size_t i = 0; i < s->width; i++)
            if (part[row * s->width + i] != value_at(s, row, s->first + i, seed))
                return 0;
    return 1;
}

/* The bytes that a process holds, its part of what it shares; 0 when it is gone. */
static inline double held_by(int pid)
{
    char path[64], line[256];
    long kib = 0;
    snprintf(path, sizeof path, "/proc/%d/smaps_rollup", pid);
    FILE *f = fopen(path, "r");
    while (f && fgets(line, sizeof line, f))
        if (sscanf(line, "Pss: %ld", &kib) == 1)
            break;
    if (f)
        fclose(f);
    return (double)kib * 1024;
}

/* Watches the memory of some processes together, as often as the kernel can tell it. */
static struct {
    int pids[3], count;
    double most;
    atomic_int is_over;
    pthread_t thread;
} watch;

static inline double held_now(void)
{
    double sum = 0;
    for (int i = 0; i < watch.count; i++)
        sum += held_by(watch.pids[i]);
    return sum;
}

static inline void *keep_watch(void *unused)
{
    while (!atomic_load(&watch.is_over)) {
        double sum = held_now();
        watch.most = sum > watch.most ? sum : watch.most;
        struct timespec t = { 0, 500000 };
        nanosleep(&t, NULL);
    }
    return unused;
}

/* Rank 0 watches both ranks and a `server`, if that is not 0. Returns what they hold now. */
static inline double watch_begin(int server)
{
    int other = (int)meet((double)getpid());
    watch.pids[0] = getpid();
    watch.pids[1] = other;
    watch.pids[2] = server;
    watch.count = server ? 3 : 2;
    double before = held_now();
    watch.most = 0;
    atomic_store(&watch.is_over, 0);
    meet(0);
    if (rank == 0 && pthread_create(&watch.thread, NULL, keep_watch, NULL))
        die("pthread_create");
    return before;
}

static inline double watch_end(void)
{
    if (rank == 0) {
        atomic_store(&watch.is_over, 1);
        pthread_join(watch.thread, NULL);
    }
    return watch.most;
}

#endif
