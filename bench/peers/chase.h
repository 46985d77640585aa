/* What chases share: the cycle, the command, and its verification after the clock has stopped. A
 * peer defines `hold` and `chase_once`.
 */
#include <stdint.h>

enum { WORDS = 1 << 18 };

static uint64_t *cycle;

static void hold(void);
static uint64_t chase_once(uint64_t at, long depth);

static void make_cycle(void)
{
    uint64_t x = 1;
    cycle = malloc(WORDS * sizeof *cycle);
    if (!cycle)
        die("malloc");
    for (uint64_t i = 0; i < WORDS; i++)
        cycle[i] = i;
    for (uint64_t i = WORDS - 1; i > 0; i--) {
        x = x * 6364136223846793005u + 1442695040888963407u;
        uint64_t other = (x >> 33) % i, word = cycle[i];
        cycle[i] = cycle[other];
        cycle[other] = word;
    }
}

/* Returns where the last chase ended. Each one begins where the end of the one before has a say, so
 * that the processor does not begin it earlier.
 */
static uint64_t chase(uint64_t *start, long depth, long often)
{
    static volatile uint64_t zero;
    uint64_t found = *start, nothing = zero;
    for (long i = 0; i < often; i++) {
        *start = (*start + 7919 + (found & nothing)) % WORDS;
        found = chase_once(*start, depth);
    }
    return found;
}

static double run(const struct command *k, int *good)
{
    hold();
    double elapsed = 0;
    int mine = 1;
    uint64_t at = 0;
    meet();
    if (rank == 0) {
        chase(&at, k->bytes, k->warmup);
        double start = now();
        uint64_t found = chase(&at, k->bytes, k->iters), right = at;
        elapsed = now() - start;
        for (long step = 0; step < k->bytes && k->iters; step++)
            right = cycle[right];
        mine = found == right;
    }
    meet();
    *good = all_intact(mine);
    return elapsed;
}

static const char *refusal(const struct command *k)
{
    return strcmp(k->name, "chain") || ranks != 2 ? "unsupported" : NULL;
}
