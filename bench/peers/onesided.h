/* The cases of one-sided operations: what is the same for every library. Rank 0 works on the memory
 * of rank 1, which meanwhile waits in a barrier and so gives the library the progress that some
 * need. A peer includes this file after the one of its library, and defines the functions below.
 */
#include <stdint.h>

/* Memory of this rank that the others reach, and private memory, both of at least `bytes` and
 * touched by their owner. */
static unsigned char *window, *origin;
static void hold(size_t bytes);

/* Whether the library has this command. */
static int offers(const struct command *k);

/* `n` operations from `origin` on the window of rank 1. "put" and "get" are complete at both ends
 * when they return; "put_nb" is started and waited for. A strided transfer takes blocks of
 * `k->bytes`, which lie together here, to every second block there. */
static void put_often(const struct command *k, long n);
static void get_often(const struct command *k, long n);
static void put_nb_often(const struct command *k, long n);
static void stride_often(const struct command *k, long n);
/* Adds 1 to the first word of the window of rank 1 and fetches what it was. */
static void add_often(const struct command *k, long n);

static int everyone(const struct command *k)
{
    return !strcmp(k->kind, "contended");
}

static void often(const struct command *k, long n)
{
    if (rank != 0 && !everyone(k))
        return;
    if (!strcmp(k->name, "put"))
        put_often(k, n);
    else if (!strcmp(k->name, "get"))
        get_often(k, n);
    else if (!strcmp(k->name, "put_nb"))
        put_nb_often(k, n);
    else if (!strcmp(k->name, "strided"))
        stride_often(k, n);
    else
        add_often(k, n);
}

/* Every block that was to be written is whole and no other byte was touched. */
static int blocks_intact(const unsigned char *p, const struct command *k)
{
    for (long i = 0; i < 2 * k->window * k->bytes; i++) {
        long block = i / k->bytes, at = i % k->bytes;
        int expected = block % 2 ? 0 : pattern(block / 2 * k->bytes + at, 1);
        if (p[i] != expected)
            return 0;
    }
    return 1;
}

static int checked(const struct command *k)
{
    int mine = 1;
    size_t bytes = (size_t)k->bytes * (k->window ? 2 * k->window : 1);
    if (!strcmp(k->name, "atomic")) {
        uint64_t expected = (uint64_t)(k->warmup + k->iters) * (everyone(k) ? ranks : 1);
        return rank != 1 || *(volatile uint64_t *)window == expected;
    }
    memset(window, 0, bytes);
    if (!strcmp(k->name, "get")) {
        fill(window, bytes, 1 + rank);
        memset(origin, 0, bytes);
    } else {
        fill(origin, bytes, 1 + rank);
    }
    meet();
    often(k, 1);
    meet();
    if (!strcmp(k->name, "get"))
        mine = rank != 0 || intact(origin, bytes, 2);
    else if (!strcmp(k->name, "strided"))
        mine = rank != 1 || blocks_intact(window, k);
    else
        mine = rank != 1 || intact(window, bytes, 1);
    return mine;
}

static double run(const struct command *k, int *good)
{
    hold((size_t)k->bytes * (k->window ? 2 * k->window : 1));
    memset(window, 0, 8);
    meet();
    often(k, k->warmup);
    meet();
    double start = now();
    often(k, k->iters);
    if (everyone(k))
        meet();
    double elapsed = now() - start;
    meet();
    *good = all_intact(checked(k));
    return elapsed;
}

static const char *refusal(const struct command *k)
{
    static const char *names[] = { "put", "get", "put_nb", "strided", "atomic" };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!strcmp(k->name, names[i]))
            return ranks != 2 ? "error this case needs two ranks" : offers(k) ? NULL : "unsupported";
    return "unsupported";
}
