/* The cases of collective operations: what is the same for every library. Each rank's input and
 * output are apart. Every library has two kinds of memory to choose from, and the faster one is
 * taken for each case. A peer includes this file after the one of its library, and defines the
 * functions below.
 */

/* Memory of kind 0 or 1, `bytes` long; NULL where the library takes only the other kind. */
static void *take(int kind, size_t bytes);
static void give_back(int kind, void *p, size_t bytes);

/* `bytes` of doubles are summed up; `bytes` come from rank 0; `bytes` go from each to each. */
static void allreduce(double *out, double *in, size_t bytes);
static void bcast(unsigned char *data, size_t bytes);
static void alltoall(unsigned char *out, unsigned char *in, size_t bytes);

struct buffers {
    unsigned char *out, *in;
    size_t size;
    int kind;
};

static int take_buffers(struct buffers *b, const struct command *k, int kind)
{
    b->size = (size_t)k->bytes * (strcmp(k->what, "alltoall") ? 1 : ranks);
    b->kind = kind;
    b->out = take(kind, b->size);
    b->in = take(kind, b->size);
    if (!b->out || !b->in)
        return 0;
    memset(b->out, 0, b->size);
    memset(b->in, 0, b->size);
    return 1;
}

static void give_buffers_back(struct buffers *b)
{
    if (b->out)
        give_back(b->kind, b->out, b->size);
    if (b->in)
        give_back(b->kind, b->in, b->size);
}

static void often(const struct command *k, struct buffers *b, long n)
{
    size_t bytes = (size_t)k->bytes;
    if (!strcmp(k->what, "barrier"))
        for (long i = 0; i < n; i++)
            meet();
    else if (!strcmp(k->what, "allreduce"))
        for (long i = 0; i < n; i++)
            allreduce((double *)b->out, (double *)b->in, bytes);
    else if (!strcmp(k->what, "bcast"))
        for (long i = 0; i < n; i++)
            bcast(b->out, bytes);
    else
        for (long i = 0; i < n; i++)
            alltoall(b->out, b->in, bytes);
}

/* Until the last rank is done, which matters where rank 0 need not wait for the others. */
static double timed(const struct command *k, struct buffers *b, long n)
{
    meet();
    double start = now();
    often(k, b, n);
    if (!strcmp(k->what, "bcast"))
        meet();
    return now() - start;
}

/* The better kind of memory for a case, found out when the case is first asked for. */
static int better_kind(const struct command *k)
{
    static struct { char what[16]; long bytes; int kind; } known[16];
    size_t i = 0;
    for (; i < 16 && known[i].what[0]; i++)
        if (!strcmp(known[i].what, k->what) && known[i].bytes == k->bytes)
            return known[i].kind;
    double best[2] = { 0, 0 };
    long n = k->bytes < 4096 ? 2000 : 20;
    if (ranks > 2)
        n = n / 20 + 1;
    for (int kind = 0; kind < 2; kind++) {
        struct buffers b;
        if (take_buffers(&b, k, kind)) {
            for (int trial = 0; trial < 5; trial++) {
                double took = timed(k, &b, n);
                if (trial > 0 && (best[kind] == 0 || took < best[kind]))
                    best[kind] = took;
            }
        }
        give_buffers_back(&b);
    }
    int kind = best[0] == 0 || (best[1] != 0 && best[1] < best[0]);
    kind = from_rank(0, kind);
    if (i < 16) {
        strcpy(known[i].what, k->what);
        known[i].bytes = k->bytes;
        known[i].kind = kind;
    }
    return kind;
}

static int checked(const struct command *k, struct buffers *b)
{
    size_t bytes = (size_t)k->bytes, doubles = bytes / sizeof(double);
    double *out = (double *)b->out, *in = (double *)b->in, sum = ranks * (ranks + 1) / 2;
    int mine = 1;
    memset(b->in, 0, b->size);
    if (!strcmp(k->what, "allreduce")) {
        for (size_t i = 0; i < doubles; i++)
            out[i] = (double)(rank + 1) * (double)(i % 1000 + 1);
        meet(); /* A one-sided library may write to `in` as soon as another rank is there. */
        allreduce(out, in, bytes);
        for (size_t i = 0; i < doubles; i++)
            mine &= in[i] == sum * (double)(i % 1000 + 1);
    } else if (!strcmp(k->what, "bcast")) {
        memset(b->out, 0, bytes);
        if (rank == 0)
            fill(b->out, bytes, 5);
        meet();
        bcast(b->out, bytes);
        mine = intact(b->out, bytes, 5);
    } else if (!strcmp(k->what, "alltoall")) {
        for (int to = 0; to < ranks; to++)
            fill(b->out + to * bytes, bytes, (unsigned)(rank * ranks + to));
        meet();
        alltoall(b->out, b->in, bytes);
        for (int from = 0; from < ranks; from++)
            mine &= intact(b->in + from * bytes, bytes, (unsigned)(from * ranks + rank));
    }
    return mine;
}

static double run(const struct command *k, int *good)
{
    struct buffers b = { NULL, NULL, 0, 0 };
    if (k->bytes)
        take_buffers(&b, k, better_kind(k));
    meet();
    often(k, &b, k->warmup);
    double elapsed = timed(k, &b, k->iters);
    *good = all_intact(checked(k, &b));
    give_buffers_back(&b);
    return elapsed;
}

static const char *refusal(const struct command *k)
{
    return strcmp(k->name, "collective") ? "unsupported" : NULL;
}
