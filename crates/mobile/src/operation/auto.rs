//! The choice among ways with the same result, by measured cost.

use crate::{Cause, Error, Result};
use std::sync::Mutex;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

/// How an operation is carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Way {
    /// The caller reads step by step.
    Gets,
    /// By a function that the units have.
    Function,
    /// By code that moves.
    Moved,
}

impl Way {
    /// All ways.
    pub const ALL: [Way; 3] = [Way::Gets, Way::Function, Way::Moved];

    /// Returns its name.
    pub fn name(self) -> &'static str {
        match self {
            Way::Gets => "gets",
            Way::Function => "function",
            Way::Moved => "moved",
        }
    }
}

/// `chosen` has the way in its two lowest bits and, in units of `ONE`, how many more operations run
/// untimed.
const ONE: u32 = 4;
/// Each way is tried this often before one is preferred: the first time includes what happens once.
const TRIALS: u32 = 4;
/// Once a way is chosen, one operation in this many is timed; more rarely, down to one in
/// `TIMED_LEAST`, if the clock would take more than its share ([`SPARED`]). Another way is tried
/// after as many, or more by the same rule: ways that cost about the same are compared often.
const TIMED: u32 = 32;
const TIMED_LEAST: u32 = 4096;
/// Each kind of measurement may take one part in this many of all time.
const SPARED: f64 = 400.0;
/// What it costs to time an operation and to choose again, in nanoseconds.
const CLOCK: f64 = 400.0;
/// A way that has failed is taken to be this many times slower than the best one.
const SLOWEST: f64 = 1000.0;
/// A way is tried at least this many times in a row, and on while it becomes faster, up to
/// `STRETCH_MOST`: at first, what it needs is not in the caches. It has stopped becoming faster
/// when none of the last `SLOWER` times was `FASTER` times the best one.
const STRETCH: u32 = 3;
const STRETCH_MOST: u32 = 32;
const FASTER: f64 = 0.98;
const SLOWER: u32 = 3;
/// Ways that are not far slower than the best one are tried at first until each has had this long,
/// in nanoseconds, each time twice as often: a cache is filled by then, and what it spares shows.
const EXPLORED: f64 = 10e6;
/// As many times slower than the best way is one that is far slower.
const FAR: f64 = 3.0;
/// A chosen way is kept for this long, in nanoseconds, although another one seems to be cheaper by
/// now: what it needs may have left the caches for a moment. Meanwhile one operation in
/// [`TIMED_IN_DOUBT`] is timed.
const PATIENCE: f64 = 10e6;
const TIMED_IN_DOUBT: u32 = 8;
/// Sizes are told apart by their power of two.
const SIZES: usize = 24;

/// So many times are kept of each way.
const RECENT: usize = 8;

/// What a way has cost of late.
#[derive(Clone, Copy, Debug)]
struct Seen {
    count: u32,
    /// All times together, in nanoseconds.
    spent: f64,
    /// Nanoseconds; infinitely many if it has failed, or was not tried.
    recent: [f64; RECENT],
}

impl Default for Seen {
    fn default() -> Seen {
        Seen {
            count: 0,
            spent: 0.0,
            recent: [f64::INFINITY; RECENT],
        }
    }
}

impl Seen {
    /// Returns the lower quartile of the recent times. Disturbances only make a process slower, so
    /// a few slow times or one failure do not count. Nor does one fast time: a way that is fast
    /// only now and then, when the other process happens to run, is not taken for a fast one.
    fn cost(&self) -> f64 {
        let mut recent = self.recent;
        recent.sort_unstable_by(f64::total_cmp);
        recent[(self.count as usize).min(RECENT) / 4]
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct OfSize {
    seen: [Seen; 3],
    since: u32,
    /// Which of the others is tried next.
    next: usize,
    trying: Option<Stretch>,
    /// The way that was chosen last.
    chosen: Option<usize>,
    /// How long it has been used although another one seems to be cheaper.
    in_doubt: f64,
    /// Meanwhile: how many operations the next one that is timed stands for.
    stands_for: u32,
}

/// A way that is being tried.
#[derive(Clone, Copy, Debug)]
struct Stretch {
    way: usize,
    tries: u32,
    /// How many there are at least.
    wanted: u32,
    /// The least time, and the tries since then.
    best: f64,
    since_best: u32,
}

impl OfSize {
    fn try_way(&mut self, way: usize, wanted: u32) -> usize {
        self.trying = Some(Stretch {
            way,
            tries: 0,
            wanted,
            best: f64::INFINITY,
            since_best: 0,
        });
        way
    }

    /// Ends a stretch whose way was tried often enough.
    fn tried(&mut self, way: usize, took: f64) {
        let Some(stretch) = self.trying.as_mut().filter(|stretch| stretch.way == way) else {
            return;
        };
        stretch.tries += 1;
        stretch.since_best += 1;
        if took < stretch.best * FASTER {
            (stretch.best, stretch.since_best) = (took, 0);
        }
        let is_enough = stretch.tries >= stretch.wanted || self.seen[way].spent >= EXPLORED;
        if is_enough && (stretch.since_best >= SLOWER || stretch.tries >= STRETCH_MOST) {
            self.trying = None;
        }
    }

    /// Returns the first way that has not been tried often enough.
    fn untried(&self) -> Option<usize> {
        self.seen.iter().position(|seen| seen.count < TRIALS)
    }

    /// Returns the way that has been tried least often of those that are to be tried for longer
    /// before one is chosen.
    fn unexplored(&self) -> Option<usize> {
        let most = self.seen[cheapest(self)].cost() * FAR;
        let near = (0..)
            .zip(&self.seen)
            .filter(|(_, seen)| seen.cost() <= most);
        let near: Vec<(usize, &Seen)> = near.collect();
        let short = near.iter().filter(|(_, seen)| seen.spent < EXPLORED);
        let least = short.min_by_key(|(_, seen)| seen.count);
        least.filter(|_| near.len() > 1).map(|(way, _)| *way)
    }
}

/// What the ways of one operation have cost, by size. Thread: any.
#[derive(Debug, Default)]
pub struct Auto {
    seen: Mutex<[OfSize; SIZES]>,
    /// By size: the chosen way, and how often it is still used without being timed.
    chosen: [AtomicU32; SIZES],
}

impl Auto {
    /// Runs an operation of this size in the way that has been the cheapest, or tries another one.
    ///
    /// # Errors
    /// Those of the operation. A way that has failed costs infinitely much, unless the operation
    /// itself is wrong: an error about addresses or structures changes nothing.
    #[inline]
    pub fn run<T>(&self, size: u64, run: impl FnOnce(Way) -> Result<T>) -> Result<T> {
        match self.untimed(size) {
            Some(way) => run(way),
            None => self.run_timed(size, run),
        }
    }

    /// Returns the chosen way, if the next operation of this size need not be timed.
    #[inline]
    pub(super) fn untimed(&self, size: u64) -> Option<Way> {
        let chosen = &self.chosen[size_class(size)];
        // ORDERING: Relaxed: a count that is lost between threads changes when a way is timed.
        let left = chosen.load(Relaxed);
        if left < ONE {
            return None;
        }
        chosen.store(left - ONE, Relaxed);
        match left % ONE {
            0 => Some(Way::Gets),
            1 => Some(Way::Function),
            _ => Some(Way::Moved),
        }
    }

    /// Has the next operation of this size timed: what this one has met takes so long that the
    /// clock costs little beside it, and may have been elsewhere before.
    pub(super) fn time_next(&self, size: u64) {
        let at = size_class(size);
        // ORDERING: Relaxed, as above.
        if self.chosen[at].load(Relaxed) >= ONE {
            // Those that were to go without were counted already.
            let left = self.chosen[at].swap(0, Relaxed) / ONE;
            let of_size = &mut crate::runtime::locked(&self.seen)[at];
            match of_size.in_doubt > 0.0 {
                true => of_size.stands_for = of_size.stands_for.saturating_sub(left).max(1),
                false => of_size.since = of_size.since.saturating_sub(left),
            }
        }
    }

    /// Runs an operation and records what it has cost.
    pub(super) fn run_timed<T>(&self, size: u64, run: impl FnOnce(Way) -> Result<T>) -> Result<T> {
        let at = size_class(size);
        let way = self.choose(at);
        let begin = Instant::now();
        let done = run(Way::ALL[way]);
        match &done {
            Ok(_) => self.record(at, way, begin.elapsed().as_nanos() as f64),
            Err(error) if is_of_way(error) => self.record(at, way, f64::INFINITY),
            Err(_) => {}
        }
        done
    }

    /// Records that a way does not work for operations of this size.
    #[cold]
    pub(super) fn fails(&self, size: u64, way: Way) {
        let at = size_class(size);
        let of_size = &mut crate::runtime::locked(&self.seen)[at];
        of_size.seen[way as usize].recent = [f64::INFINITY; RECENT];
        of_size.chosen = of_size.chosen.filter(|chosen| *chosen != way as usize);
        // ORDERING: Relaxed, as above.
        self.chosen[at].store(0, Relaxed);
    }

    /// Returns the way that is the cheapest for operations of this size; `None` while ways are
    /// tried that have not been tried often enough.
    pub fn best(&self, size: u64) -> Option<Way> {
        let of_size = &crate::runtime::locked(&self.seen)[size_class(size)];
        let is_tried = of_size.untried().is_none();
        is_tried.then(|| Way::ALL[of_size.chosen.unwrap_or_else(|| cheapest(of_size))])
    }

    /// Returns the cheapest of the other ways, as far as they have been tried.
    #[cold]
    pub(super) fn other(&self, size: u64, than: Way) -> Way {
        let of_size = &crate::runtime::locked(&self.seen)[size_class(size)];
        let cost = |way: &Way| of_size.seen[*way as usize].cost();
        let others = Way::ALL.into_iter().filter(|way| *way != than);
        let best = others.min_by(|one, two| cost(one).total_cmp(&cost(two)));
        best.unwrap_or(Way::Gets)
    }

    fn choose(&self, at: usize) -> usize {
        let of_size = &mut crate::runtime::locked(&self.seen)[at];
        if let Some(stretch) = of_size.trying {
            return stretch.way;
        }
        if let Some(way) = of_size.untried() {
            return of_size.try_way(way, TRIALS);
        }
        if let Some(way) = of_size.unexplored() {
            let count = of_size.seen[way].count;
            return of_size.try_way(way, count);
        }
        let best = cheapest(of_size);
        let cost = |way: usize| of_size.seen[way].cost().max(1.0);
        if let Some(chosen) = of_size.chosen.filter(|chosen| *chosen != best)
            && of_size.in_doubt < PATIENCE
            && cost(chosen).is_finite()
        {
            // ORDERING: Relaxed, as above.
            self.chosen[at].store(chosen as u32 + ONE * (TIMED_IN_DOUBT - 1), Relaxed);
            of_size.stands_for = TIMED_IN_DOUBT;
            return chosen;
        }
        (of_size.chosen, of_size.in_doubt) = (Some(best), 0.0);
        let times_slower = (cost(of_size.next) / cost(best)).min(SLOWEST);
        let rarely = (times_slower - 1.0) * SPARED * f64::from(STRETCH);
        if of_size.since < TIMED.max(rarely as u32) {
            let timed = ((CLOCK * SPARED / cost(best)) as u32).clamp(TIMED, TIMED_LEAST);
            of_size.since += timed;
            // ORDERING: Relaxed, as above.
            self.chosen[at].store(best as u32 + ONE * (timed - 1), Relaxed);
            return best;
        }
        let next = of_size.next;
        (of_size.since, of_size.next) = (0, (next + 1) % Way::ALL.len());
        of_size.try_way(next, STRETCH)
    }

    /// Records what a way has cost: infinitely much, if it has failed.
    fn record(&self, at: usize, way: usize, took: f64) {
        let of_size = &mut crate::runtime::locked(&self.seen)[at];
        let seen = &mut of_size.seen[way];
        seen.recent[seen.count as usize % RECENT] = took;
        if took.is_finite() {
            seen.spent += took + CLOCK;
        }
        seen.count = match seen.count {
            u32::MAX => TRIALS,
            count => count + 1,
        };
        of_size.tried(way, took);
        if of_size.chosen == Some(way) {
            of_size.in_doubt = match cheapest(of_size) == way {
                true => 0.0,
                false => of_size.in_doubt + took * f64::from(of_size.stands_for.max(1)),
            };
        }
    }
}

/// Returns whether the same operation may succeed in another way: its addresses are not wrong, nor
/// is what it has found.
fn is_of_way(error: &Error) -> bool {
    match error {
        Error::Failed(failure) => failure.cause != Cause::Failed,
        Error::BadAddress { .. } | Error::BadLayout(_) => false,
        Error::Damaged(_) | Error::BadReply { .. } => false,
        _ => true,
    }
}

fn size_class(size: u64) -> usize {
    (u64::BITS - size.leading_zeros()).min(SIZES as u32 - 1) as usize
}

fn cheapest(of_size: &OfSize) -> usize {
    let costs = of_size.seen.iter().enumerate();
    let best = costs.min_by(|(_, one), (_, two)| one.cost().total_cmp(&two.cost()));
    best.map_or(0, |(way, _)| way)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs operations of 31 words at these costs in nanoseconds, and counts the ways.
    fn spent(auto: &Auto, costs: [f64; 3], operations: u32) -> [u32; 3] {
        let (at, mut counts) = (size_class(31), [0; 3]);
        for _ in 0..operations {
            let way = auto.untimed(31).map(|way| way as usize);
            let way = way.unwrap_or_else(|| {
                let way = auto.choose(at);
                auto.record(at, way, costs[way]);
                way
            });
            counts[way] += 1;
        }
        counts
    }

    /// The cheapest way is found, and found again when costs change. Others take a small part of
    /// the time.
    #[test]
    fn the_cheapest_way_is_chosen() {
        let auto = Auto::default();
        let counts = spent(&auto, [1e5, 100.0, 300.0], 1_000_000);
        assert!(counts[1] > 800_000 && counts[0] < 30, "{counts:?}");
        let counts = spent(&auto, [1e5, 2000.0, 300.0], 1_000_000);
        assert!(counts[2] > 900_000, "{counts:?}");
        assert_eq!(auto.best(31), Some(Way::Moved));
    }

    /// A way that fails is tried, and not chosen; once it works, it is.
    #[test]
    fn a_way_that_fails_is_not_chosen() {
        let auto = Auto::default();
        let counts = spent(&auto, [500.0, 100.0, f64::INFINITY], 1_000_000);
        assert!(counts[2] < 100 && counts[1] > 800_000, "{counts:?}");
        let counts = spent(&auto, [500.0, 100.0, 10.0], 10_000_000);
        assert!(counts[2] > 5_000_000, "{counts:?}");
        assert_eq!(auto.best(31), Some(Way::Moved));
        auto.fails(31, Way::Moved);
        assert_eq!(auto.best(31), Some(Way::Function));
        assert_eq!(auto.other(31, Way::Function), Way::Gets);
    }

    /// An operation that has met something slow has the next one timed, however many were to go
    /// without.
    #[test]
    fn the_next_one_is_timed() {
        let auto = Auto::default();
        auto.chosen[size_class(31)].store(ONE * TIMED_LEAST, Relaxed);
        assert_eq!(auto.untimed(31), Some(Way::Gets));
        auto.time_next(31);
        assert_eq!(auto.untimed(31), None);
    }

    /// A way that becomes fast only when a cache is filled, after a thousand operations that are
    /// slower than those of another way, is found before one is chosen.
    #[test]
    fn a_cache_has_time_to_fill() {
        let (auto, at) = (Auto::default(), size_class(31));
        let mut ways = [0; 3];
        for _ in 0..100_000 {
            let untimed = auto.untimed(31).map(|way| way as usize);
            let way = untimed.unwrap_or_else(|| auto.choose(at));
            ways[way] += 1;
            let cost = match way {
                0 if ways[0] > 1000 => 700.0,
                0 => 3000.0,
                1 => 2000.0,
                _ => 2500.0,
            };
            if untimed.is_none() {
                auto.record(at, way, cost);
            }
        }
        assert!(ways[0] > 70_000, "{ways:?}");
    }

    /// The chosen way is kept when it is slower for a moment than another one, and left when it
    /// stays so.
    #[test]
    fn a_slow_moment_changes_no_choice() {
        let auto = Auto::default();
        spent(&auto, [700.0, 2000.0, 9000.0], 100_000);
        assert_eq!(auto.best(31), Some(Way::Gets));
        // Three milliseconds, and then ten.
        let counts = spent(&auto, [3000.0, 2000.0, 9000.0], 1000);
        assert!(counts[0] > 900, "{counts:?}");
        spent(&auto, [700.0, 2000.0, 9000.0], 1000);
        assert_eq!(auto.best(31), Some(Way::Gets));
        spent(&auto, [3000.0, 2000.0, 9000.0], 10_000);
        assert_eq!(auto.best(31), Some(Way::Function));
    }

    /// A way that is fast one time in eight is not the cheapest. One that becomes faster with each
    /// use, as what it reads comes to its processor, is tried until it does not any more.
    #[test]
    fn a_lucky_way_is_not_chosen() {
        let (auto, at) = (Auto::default(), size_class(31));
        let mut ways = [0; 3];
        for _ in 0..3_000_000 {
            let untimed = auto.untimed(31).map(|way| way as usize);
            let way = untimed.unwrap_or_else(|| auto.choose(at));
            ways[way] += 1;
            let cost = match way {
                0 => 46.0 + 40.0 * 0.8_f64.powi(ways[0]),
                2 if ways[2] % 8 == 0 => 40.0,
                2 => 600.0,
                _ => 52.0,
            };
            if untimed.is_none() {
                auto.record(at, way, cost);
            }
        }
        assert!(ways[0] > 2_000_000, "{ways:?}");
    }

    /// No way is the best one before all have been tried.
    #[test]
    fn nothing_is_the_best_before_all_were_tried() {
        let auto = Auto::default();
        for _ in 0..3 * TRIALS {
            assert_eq!(auto.best(31), None);
            spent(&auto, [500.0, 100.0, 300.0], 1);
        }
        assert_eq!(auto.best(31), Some(Way::Function));
        assert_eq!(auto.best(1000), None);
    }

    /// A caller that names a wrong address says nothing about the way; a lost unit does.
    #[test]
    fn a_wrong_operation_changes_no_choice() {
        let auto = Auto::default();
        spent(&auto, [500.0, 100.0, 300.0], 3 * TRIALS);
        let changes = |error: Error| {
            (0..8 * RECENT).any(|_| {
                auto.chosen[size_class(31)].store(0, Relaxed); // The next one is timed.
                let ended = auto.run(31, |_| Err::<(), _>(error.clone()));
                assert_eq!(ended, Err(error.clone()));
                auto.best(31) != Some(Way::Function)
            })
        };
        let wrong = Error::BadAddress {
            address: 9,
            count: 1,
            words: 3,
            units: 3,
        };
        let failed = |cause| Error::Failed(Box::new(crate::Failure::new(cause, "")));
        for error in [wrong, failed(Cause::Failed)] {
            assert!(!changes(error));
        }
        assert!(changes(failed(Cause::Lost)));
    }

    /// A way that fails from its first try is left, whatever stops it.
    #[test]
    fn a_way_that_never_worked_is_left() {
        let auto = Auto::default();
        let failed = || Error::Failed(Box::new(crate::Failure::new(Cause::Grant, "")));
        let run = |way: Way| match way {
            Way::Gets => Ok(()),
            _ => Err(failed()),
        };
        let ended: Vec<_> = (0..4 * STRETCH_MOST).map(|_| auto.run(31, run)).collect();
        assert!(ended[3 * STRETCH_MOST as usize..].iter().all(Result::is_ok));
        assert_eq!(auto.best(31), Some(Way::Gets));
    }
}
