/* The integer sort of the NAS Parallel Benchmarks (IS, as specified for NPB 3.4) over MPI: in every
 * iteration each rank sorts its keys into buckets, the sizes are summed up by MPI_Allreduce, the keys
 * go to the ranks of their buckets by MPI_Alltoall (counts) and MPI_Alltoallv, and are counted there.
 * Five ranks of keys are checked in every iteration, the whole order at the end. The time is that of
 * the ten iterations.
 */
#include "mpi_peer.h"
#include <stdint.h>

enum { ITERATIONS = 10, TESTS = 5, SEED = 314159265, FACTOR = 1220703125 };

static const struct class {
    char name;
    int keys_log2, most_log2, buckets_log2;
    int at[TESTS], order[TESTS];
    int sign[TESTS], shift; /* the order of test key t moves by sign[t] * (iteration - shift) */
} classes[] = {
    { 'S', 16, 11, 9, { 48427, 17148, 23627, 62548, 4431 }, { 0, 18, 346, 64917, 65463 },
      { 1, 1, 1, -1, -1 }, 0 },
    { 'W', 20, 16, 10, { 357773, 934767, 875723, 898999, 404505 },
      { 1249, 11698, 1039987, 1043896, 1048018 }, { 1, 1, -1, -1, -1 }, 0 },
    { 'A', 23, 19, 10, { 2112377, 662041, 5336171, 3642833, 4250760 },
      { 104, 17523, 123928, 8288932, 8388264 }, { 1, 1, 1, -1, -1 }, 1 },
    { 'B', 25, 21, 10, { 41869, 812306, 5102857, 18232239, 26860214 },
      { 33422937, 10244, 59149, 33135281, 99 }, { -1, 1, 1, -1, 1 }, 0 },
};

static const struct class *class;
static long keys;             /* of this rank at first */
static int buckets, shift;
static int *key, *sorted, *arrived;
static long room;             /* keys that `sorted` and `arrived` can hold */
static int *sizes, *totals, *starts;
static int first, last;       /* buckets of this rank */
static long mine, before;     /* keys of this rank after the exchange, and of lower ranks */
static int *population;       /* of key values from `least` on, then how many are not above them */
static int least;
static int passed;

static const uint64_t MASK = ((uint64_t)1 << 46) - 1;

/* randlc of NPB in whole numbers: x -> a x mod 2^46. */
static inline uint64_t times(uint64_t a, uint64_t x)
{
    return a * x & MASK;
}

static void make_keys(void)
{
    /* The sequence has four numbers per key; this rank begins at its own first key. */
    uint64_t x = SEED, power = FACTOR;
    for (uint64_t skip = 4 * (uint64_t)keys * (uint64_t)rank; skip; skip >>= 1) {
        if (skip & 1)
            x = times(power, x);
        power = times(power, power);
    }
    for (long i = 0; i < keys; i++) {
        uint64_t sum = 0;
        for (int j = 0; j < 4; j++)
            sum += x = times(FACTOR, x);
        /* A quarter of the largest key times the sum of four numbers between 0 and 1. */
        key[i] = (int)(sum >> (46 + 2 - class->most_log2));
    }
}

static void sort_into_buckets(void)
{
    memset(sizes, 0, sizeof *sizes * (size_t)(buckets + TESTS));
    for (int t = 0; t < TESTS; t++)
        if (class->at[t] / keys == rank)
            sizes[buckets + t] = key[class->at[t] % keys];
    for (long i = 0; i < keys; i++)
        sizes[key[i] >> shift]++;
    starts[0] = 0;
    for (int b = 1; b < buckets; b++)
        starts[b] = starts[b - 1] + sizes[b - 1];
    for (long i = 0; i < keys; i++)
        sorted[starts[key[i] >> shift]++] = key[i];
}

/* Gives each rank the next buckets until it has its share of the keys. */
static void share_buckets(int *send, int *to)
{
    long total = 0, local = 0, sent = 0, seen = 0;
    int who = 0, begin = 0;
    mine = 0;
    first = 1;
    last = 0;
    for (int r = 0; r < ranks; r++)
        send[r] = to[r] = 0;
    for (int b = 0; b < buckets; b++) {
        total += totals[b];
        local += sizes[b];
        if (total < (who + 1) * keys)
            continue;
        send[who] = (int)local;
        to[who] = (int)sent;
        if (who == rank) {
            first = begin;
            last = b;
            before = seen;
            mine = total - seen;
        }
        sent += local;
        seen = total;
        local = 0;
        begin = b + 1;
        who++;
    }
}

static void exchange_keys(void)
{
    int send[64], to[64], come[64], from[64];
    share_buckets(send, to);
    MPI_Alltoall(send, 1, MPI_INT, come, 1, MPI_INT, MPI_COMM_WORLD);
    from[0] = 0;
    for (int r = 1; r < ranks; r++)
        from[r] = from[r - 1] + come[r - 1];
    MPI_Alltoallv(sorted, send, to, MPI_INT, arrived, come, from, MPI_INT, MPI_COMM_WORLD);
}

static void count_keys(void)
{
    least = first << shift;
    long values = (long)(last + 1 - first) << shift;
    memset(population, 0, sizeof *population * (size_t)values);
    for (long i = 0; i < mine; i++)
        population[arrived[i] - least]++;
    for (long v = 1; v < values; v++)
        population[v] += population[v - 1];
}

static void check_some(int iteration)
{
    for (int t = 0; t < TESTS; t++) {
        int k = totals[buckets + t];
        if (k >> shift < first || k >> shift > last)
            continue;
        long below = before + (k > least ? population[k - 1 - least] : 0);
        int w_later = class->name == 'W' && class->sign[t] > 0 ? 2 : class->shift;
        passed += below == class->order[t] + class->sign[t] * (iteration - w_later);
    }
}

static void rank_keys(int iteration)
{
    if (rank == 0) {
        key[iteration] = iteration;
        key[iteration + ITERATIONS] = (1 << class->most_log2) - iteration;
    }
    sort_into_buckets();
    MPI_Allreduce(sizes, totals, buckets + TESTS, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    exchange_keys();
    count_keys();
    check_some(iteration);
}

/* Puts the keys where their ranks say and looks at every neighbour, over the ranks' borders, too. */
static int in_order(void)
{
    long wrong = 0;
    int previous = -1;
    for (long i = 0; i < mine; i++)
        sorted[--population[arrived[i] - least]] = arrived[i];
    for (long i = 1; i < mine; i++)
        wrong += sorted[i - 1] > sorted[i];
    int end = mine ? sorted[mine - 1] : -1;
    MPI_Exscan(&end, &previous, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
    wrong += rank > 0 && mine && previous > sorted[0];
    return wrong == 0;
}

static void prepare(const struct command *k)
{
    for (size_t c = 0; c < sizeof classes / sizeof *classes; c++)
        if (classes[c].name == k->what[0])
            class = &classes[c];
    keys = (1L << class->keys_log2) / ranks;
    buckets = 1 << class->buckets_log2;
    shift = class->most_log2 - class->buckets_log2;
    room = keys * 3 / 2 + 1024;
    key = (int *)take_pages(sizeof *key * (size_t)keys);
    sorted = (int *)take_pages(sizeof *sorted * (size_t)room);
    arrived = (int *)take_pages(sizeof *arrived * (size_t)room);
    population = (int *)take_pages(sizeof *population << class->most_log2);
    sizes = calloc((size_t)(buckets + TESTS), sizeof *sizes);
    totals = calloc((size_t)(buckets + TESTS), sizeof *totals);
    starts = calloc((size_t)buckets, sizeof *starts);
    passed = 0;
    make_keys();
}

static void tidy(void)
{
    int *all[] = { key, sorted, arrived, population, sizes, totals, starts };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        free(all[i]);
}

static double run(const struct command *k, int *good)
{
    prepare(k);
    rank_keys(1); /* Untimed, to touch all memory. */
    passed = 0;
    meet();
    double start = now();
    for (int i = 1; i <= ITERATIONS; i++)
        rank_keys(i);
    double elapsed = now() - start, slowest;
    MPI_Allreduce(&elapsed, &slowest, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    int all;
    MPI_Allreduce(&passed, &all, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    *good = all_intact(in_order() && all == TESTS * ITERATIONS);
    tidy();
    return slowest;
}

static void let_go(void)
{
}

static const char *refusal(const struct command *k)
{
    if (strcmp(k->name, "is") || !strchr("SWAB", k->what[0]))
        return "unsupported";
    return ranks & (ranks - 1) || ranks > 64 ? "error the ranks are no power of two" : NULL;
}
