/* What every C peer of the benches shares: control lines, pinning, clock, pattern.
 *
 * A peer is started once with a control folder as its first argument and then
 * waits, rank by rank, in read() on the fifo DIR/ctl.RANK, so that it burns no
 * processor time while another contestant is measured. Every rank reads the same
 * lines; rank 0 answers each with one line on the fifo DIR/out: a number,
 * "unsupported", or "error TEXT". Its first line there is "ready".
 */
#ifndef SAMITE_BENCH_PEER_H
#define SAMITE_BENCH_PEER_H

#define _GNU_SOURCE
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

struct command {
    char name[16];
    char what[16];   /* operation of a collective, class of a program, figure of a video */
    char kind[16];   /* kind of buffer or of access, "malloc" where the command names none */
    long bytes;
    long window;     /* messages in flight, blocks of a strided transfer */
    long iters;
    long warmup;
    double seconds;
    long width, height;
    char times[512]; /* of nodes for a frame, in microseconds, separated by commas */
};

struct control {
    FILE *in;
    FILE *out;       /* rank 0 only */
};

static inline double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static inline double cpu_seconds(void)
{
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec)
         + 1e-6 * (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec);
}

static inline void die(const char *what)
{
    perror(what);
    exit(1);
}

/* For what is wrong beside the system's calls. */
static inline void give_up(const char *what)
{
    fprintf(stderr, "%s\n", what);
    exit(1);
}

/* Where this process could run before it was pinned. */
static cpu_set_t anywhere;
static int is_pinned;

/* Pins this process to the entry of SAMITE_BENCH_CPUS ("0,1") that is its turn;
 * without the variable the kernel places it. */
static inline void pin(int rank)
{
    const char *list = getenv("SAMITE_BENCH_CPUS");
    if (!list || !*list)
        return;
    int cpus[64], n = 0;
    for (char *end; n < 64; list = end + 1) {
        cpus[n++] = (int)strtol(list, &end, 10);
        if (*end != ',')
            break;
    }
    if (!is_pinned && sched_getaffinity(0, sizeof anywhere, &anywhere))
        die("sched_getaffinity");
    is_pinned = 1;
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(cpus[rank % n], &set);
    if (sched_setaffinity(0, sizeof set, &set))
        die("sched_setaffinity");
}

/* Until the next pin(): threads that a library starts meanwhile may run wherever there is room. */
static inline void unpin(void)
{
    if (is_pinned && sched_setaffinity(0, sizeof anywhere, &anywhere))
        die("sched_setaffinity");
}

/* Dies with its launcher: the driver kills the launcher and nothing may stay. */
static inline void die_with_parent(void)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
}

static inline struct control control_open(const char *dir, int rank)
{
    struct control c = {0};
    char path[4096];
    snprintf(path, sizeof path, "%s/ctl.%d", dir, rank);
    if (!(c.in = fopen(path, "r")))
        die(path);
    if (rank == 0) {
        snprintf(path, sizeof path, "%s/out", dir);
        if (!(c.out = fopen(path, "w")))
            die(path);
    }
    return c;
}

static inline void answer(struct control *c, const char *text)
{
    if (c->out) {
        fprintf(c->out, "%s\n", text);
        fflush(c->out);
    }
}

static inline void answer_number(struct control *c, double value)
{
    char text[64];
    snprintf(text, sizeof text, "%.9e", value);
    answer(c, text);
}

/* The commands and what follows their names: o what, k kind, b bytes, w window, i iterations,
 * u warm-up, s seconds, x width, y height, t times. The crate's documentation says what each is to do. */
static const struct { const char *name, *fields; } commands[] = {
    { "latency", "biu" }, { "frames", "kbiu" }, { "alltoall", "biu" }, { "rate", "bwiu" }, { "stream", "bwiu" },
    { "bandwidth", "kbiu" }, { "barrier", "iu" }, { "idle", "s" },
    { "put", "biu" }, { "get", "biu" }, { "put_nb", "biu" }, { "strided", "wbiu" },
    { "atomic", "kiu" }, { "collective", "okbiu" }, { "lock", "kiu" }, { "gups", "kiu" },
    { "video", "oxyit" }, { "is", "o" }, { "step", "kbiu" }, { "slab", "kbiu" }, { "store", "kbiu" }, { "peak", "kbiu" },
    { "share", "kbiu" }, { "chain", "biu" },
};

static inline int field(char which, const char *word, struct command *k)
{
    char *end;
    long *number = which == 'b' ? &k->bytes : which == 'w' ? &k->window : which == 'x' ? &k->width
                 : which == 'y' ? &k->height : which == 'i' ? &k->iters : &k->warmup;
    switch (which) {
    case 'o':
        snprintf(k->what, sizeof k->what, "%s", word);
        return 1;
    case 'k':
        snprintf(k->kind, sizeof k->kind, "%s", word);
        return 1;
    case 't':
        snprintf(k->times, sizeof k->times, "%s", word);
        return strlen(word) < sizeof k->times;
    case 's':
        k->seconds = strtod(word, &end);
        return !*end;
    default:
        *number = strtol(word, &end, 10);
        return !*end && *number >= 0;
    }
}

/* Fills `k` from one line; 0 when the line is not a command of the protocol. */
static inline int parse(char *line, struct command *k)
{
    memset(k, 0, sizeof *k);
    strcpy(k->kind, "malloc");
    char *rest, *word = strtok_r(line, " \n", &rest);
    if (!word)
        return 0;
    snprintf(k->name, sizeof k->name, "%s", word);
    const char *fields = ""; /* "quit", and commands that this peer does not know */
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++)
        if (!strcmp(k->name, commands[i].name))
            fields = commands[i].fields;
    for (; *fields; fields++) {
        word = strtok_r(NULL, " \n", &rest);
        if (!word || !field(*fields, word, k))
            return 0;
    }
    return 1;
}

/* Blocks in read() for the next command. 0 at "quit", and when the driver is gone. */
static inline int next_command(struct control *c, struct command *k)
{
    char line[1024];
    while (fgets(line, sizeof line, c->in)) {
        if (!parse(line, k)) {
            answer(c, "error malformed command");
            continue;
        }
        return strcmp(k->name, "quit") != 0;
    }
    return 0;
}

/* Depends on the position, so that a shifted, repeated or lost piece shows. */
static inline unsigned char pattern(size_t i, unsigned seed)
{
    return (unsigned char)((i ^ (i >> 8) ^ (i >> 16)) * 31 + seed * 17 + 1);
}

static inline void fill(unsigned char *p, size_t bytes, unsigned seed)
{
    for (size_t i = 0; i < bytes; i++)
        p[i] = pattern(i, seed);
}

static inline int intact(const unsigned char *p, size_t bytes, unsigned seed)
{
    for (size_t i = 0; i < bytes; i++)
        if (p[i] != pattern(i, seed))
            return 0;
    return 1;
}

/* The fastest of some ways to do the same: they take turns, and the best trial of each counts. */
static inline int fastest(int ways, void (*way)(int))
{
    double best = 0;
    int choice = 0;
    for (int trial = 0; trial < 6; trial++)
        for (int w = 0; w < ways; w++) {
            double start = now();
            way(w);
            double took = now() - start;
            /* The first trial pays for page faults and connections. */
            if (trial > 0 && (best == 0 || took < best)) {
                best = took;
                choice = w;
            }
        }
    return choice;
}

/* Page-aligned private memory as malloc gives it, written once. */
static inline unsigned char *take_pages(size_t bytes)
{
    unsigned char *p = aligned_alloc(4096, (bytes + 4095) & ~(size_t)4095);
    if (!p)
        die("aligned_alloc");
    memset(p, 1, bytes);
    return p;
}

static inline unsigned char *take_huge_pages(size_t bytes)
{
    size_t huge = (size_t)2 << 20, size = (bytes + huge - 1) & ~(huge - 1);
    unsigned char *p = aligned_alloc(huge, size);
    if (!p)
        die("aligned_alloc");
    madvise(p, size, MADV_HUGEPAGE);
    memset(p, 1, bytes);
    return p;
}

/* Memory that no one has touched: the kernel gives its pages at the first access. */
static inline unsigned char *take_cold(size_t bytes)
{
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        die("mmap");
    return p;
}

#endif
