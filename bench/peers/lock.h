/* The cases of locks: what is the same for every library. Each holder adds one to a counter by a
 * plain load and a plain store, so that two holders at a time would show. "uncontended" is the last
 * rank alone, for which the lock lies with another rank; "contended" is everybody. A peer includes
 * this file after the one of its library, and defines the functions below.
 */

/* Makes the lock at the first call. `counter` is memory that all ranks share. */
static void hold(void);
static volatile long *counter;
static void acquire(void);
static void release(void);

static void critical(long n)
{
    for (long i = 0; i < n; i++) {
        acquire();
        *counter = *counter + 1;
        release();
    }
}

static double run(const struct command *k, int *good)
{
    hold();
    int alone = !strcmp(k->kind, "uncontended"), takes_part = !alone || rank == ranks - 1;
    if (rank == 0)
        *counter = 0;
    meet();
    if (takes_part)
        critical(k->warmup);
    meet();
    double start = now();
    if (takes_part)
        critical(k->iters);
    if (!alone)
        meet();
    double elapsed = from_rank(ranks - 1, now() - start);
    long expected = (k->warmup + k->iters) * (alone ? 1 : ranks);
    *good = all_intact(rank != 0 || *counter == expected);
    return elapsed;
}

static const char *refusal(const struct command *k)
{
    return strcmp(k->name, "lock") ? "unsupported" : NULL;
}
