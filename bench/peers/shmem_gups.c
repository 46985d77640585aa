/* Random access over OpenSHMEM. Plain updates are shmem_uint64_atomic_xor; buckets are put into the
 * other ranks' memory, with their sizes, and applied after a barrier. Two sets of buckets in turn
 * make one barrier per round enough.
 */
#include "shmem_peer.h"
#include "gups.h"

struct bucket {
    uint64_t count, words[LOOK_AHEAD];
};

static struct bucket *arrived[2];
static int turn;

static void hold(void)
{
    if (table)
        return;
    table = symmetric(WORDS * sizeof *table);
    for (int t = 0; t < 2; t++)
        arrived[t] = symmetric(ranks * sizeof **arrived);
    meet();
}

static void let_go(void)
{
}

static int offers(const struct command *k)
{
    return 1;
}

static void update(const uint64_t *randoms, long count)
{
    for (long i = 0; i < count; i++)
        shmem_ulong_atomic_xor((unsigned long *)&table[place(randoms[i])], randoms[i],
                               owner(randoms[i]));
    shmem_quiet();
}

static void exchange(uint64_t *const *buckets, const int *counts)
{
    struct bucket *in = arrived[turn ^= 1];
    for (int step = 1; step < ranks; step++) {
        int to = (rank + step) % ranks;
        shmem_putmem_nbi(in[rank].words, buckets[to], counts[to] * sizeof(uint64_t), to);
        shmem_uint64_p(&in[rank].count, counts[to], to);
    }
    meet();
    for (int from = 0; from < ranks; from++)
        if (from != rank)
            apply(in[from].words, (long)in[from].count);
}
