/* Random access as in HPCC: a table of words over all ranks, a random sequence of words, each of
 * which is exclusive-or-ed into the place that its low bits name. At most 1024 updates of a rank are
 * on their way at a time, as HPCC's rules say. Afterwards the same updates are done once more, which
 * must restore the table: none may be lost (HPCC would accept one in a hundred).
 *
 * "plain" updates go out one by one, "aggregated" ones in buckets per rank. A peer includes this file
 * after the one of its library, and defines the functions below.
 */
#include <stdint.h>

#define POLY 7
#define PERIOD 1317624576693539401LL
#define LOOK_AHEAD 1024
#define WORDS_LOG2 23 /* of each rank's part: 64 MiB */
#define WORDS ((uint64_t)1 << WORDS_LOG2)
#define MOST_RANKS 64

/* Makes the table at the first call; `table` is this rank's part. */
static void hold(void);
static uint64_t *table;
static int offers(const struct command *k);

/* Updates `count` places, of any rank, atomically. */
static void update(const uint64_t *randoms, long count);

/* Sends bucket b to rank b and applies what arrives: `apply`. */
static void exchange(uint64_t *const *buckets, const int *counts);

static inline uint64_t next_random(uint64_t x)
{
    return (x << 1) ^ ((int64_t)x < 0 ? POLY : 0);
}

/* The word at position n of the sequence (the shape of HPCC's own). */
static uint64_t random_at(int64_t n)
{
    uint64_t m2[64], x = 1;
    n %= PERIOD;
    if (n == 0)
        return 1;
    for (int i = 0; i < 64; i++) {
        m2[i] = x;
        x = next_random(next_random(x));
    }
    int i = 62;
    while (!(n >> i & 1))
        i--;
    x = 2;
    while (i-- > 0) {
        uint64_t square = 0;
        for (int j = 0; j < 64; j++)
            if (x >> j & 1)
                square ^= m2[j];
        x = n >> i & 1 ? next_random(square) : square;
    }
    return x;
}

static inline int owner(uint64_t random)
{
    return (int)(random >> WORDS_LOG2 & (uint64_t)(ranks - 1));
}

static inline uint64_t place(uint64_t random)
{
    return random & (WORDS - 1);
}

static inline void apply(const uint64_t *randoms, long count)
{
    for (long i = 0; i < count; i++)
        table[place(randoms[i])] ^= randoms[i];
}

static uint64_t plain(uint64_t x, long n)
{
    static uint64_t randoms[LOOK_AHEAD];
    while (n > 0) {
        long count = n < LOOK_AHEAD ? n : LOOK_AHEAD;
        for (long i = 0; i < count; i++)
            randoms[i] = x = next_random(x);
        update(randoms, count);
        n -= count;
    }
    return x;
}

static uint64_t aggregated(uint64_t x, long n)
{
    static uint64_t room[MOST_RANKS][LOOK_AHEAD];
    uint64_t *buckets[MOST_RANKS];
    int counts[MOST_RANKS];
    for (int r = 0; r < ranks; r++)
        buckets[r] = room[r];
    while (n > 0) {
        long count = n < LOOK_AHEAD ? n : LOOK_AHEAD;
        memset(counts, 0, sizeof counts);
        for (long i = 0; i < count; i++) {
            x = next_random(x);
            int who = owner(x);
            if (who == rank)
                table[place(x)] ^= x;
            else
                room[who][counts[who]++] = x;
        }
        exchange(buckets, counts);
        n -= count;
    }
    return x;
}

static double run(const struct command *k, int *good)
{
    hold();
    uint64_t start_of_mine = random_at((int64_t)rank << 50), x = start_of_mine;
    uint64_t (*updates)(uint64_t, long) = strcmp(k->kind, "plain") ? aggregated : plain;
    for (uint64_t i = 0; i < WORDS; i++)
        table[i] = i;
    meet();
    x = updates(x, k->warmup);
    meet();
    double start = now();
    updates(x, k->iters);
    meet();
    double elapsed = now() - start;
    x = updates(start_of_mine, k->warmup);
    updates(x, k->iters);
    meet();
    int mine = 1;
    for (uint64_t i = 0; i < WORDS; i++)
        mine &= table[i] == i;
    *good = all_intact(mine);
    return elapsed;
}

static const char *refusal(const struct command *k)
{
    if (strcmp(k->name, "gups") || !offers(k))
        return "unsupported";
    return ranks & (ranks - 1) || ranks > MOST_RANKS ? "error the ranks are no power of two" : NULL;
}
