//! The two ends of one direction of a link: when a frame departs, and when it is due. Pure: the
//! caller says what time it is.

use crate::Link;
use crate::transport::{Class, RawFrame};
use samite_mem::Corrupt;
use std::collections::VecDeque;
use std::time::Duration;

/// What a frame takes on the link besides its bytes: kind, word and length.
const HEADER: u64 = 16;
/// What a frame takes in memory besides its bytes.
const ENTRY: u64 = 128;
/// The most bytes of frames to one peer that are under way, whatever the link can carry.
const CAPACITY_MAX: u64 = 16 << 20;
/// The same for a link without delay: some frames of the longest kind.
const CAPACITY_MIN: u64 = 256 << 10;
/// For so long a sender can leave the link alone without a gap in what it carries: no bell rings
/// when there is room again, and a process with something to send looks every 500 us.
const AHEAD: Duration = Duration::from_millis(5);
/// The most bytes of frames of one peer that are queued. This is more than an honest peer sends:
/// settings that differ slightly are no reason to shut it out.
pub(super) const QUEUED_MAX: u64 = 2 * CAPACITY_MAX;

impl Link {
    /// Returns how long the link takes to carry so many bytes.
    pub(crate) fn time_of(&self, bytes: u64) -> Duration {
        let nanos = |rate| u128::from(bytes) * 1_000_000_000 / u128::from(rate);
        let nanos = self.rate.filter(|rate| *rate > 0).map_or(0, nanos);
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }

    /// Returns the longest time from the departure of a frame to its arrival.
    fn longest(&self) -> Duration {
        self.delay.saturating_add(self.jitter)
    }

    /// Returns how many bytes of frames of this class may be under way to one peer. What the
    /// receiver queues is bounded by that, because it queues only frames that are under way.
    fn capacity(&self, class: Class) -> u64 {
        let carried = |rate: u64| {
            let time = self.longest().saturating_add(AHEAD);
            let bytes = u128::from(rate) * time.as_nanos() / 1_000_000_000;
            u64::try_from(bytes).unwrap_or(u64::MAX)
        };
        let bytes = self.rate.map_or(CAPACITY_MAX, carried);
        let requests = bytes.saturating_add(CAPACITY_MIN).min(CAPACITY_MAX);
        match class {
            Class::Request => requests,
            // T3. Time makes room in any case.
            Class::Reply => requests + requests / 4,
        }
    }

    /// Returns how far in the future a frame of this length may depart.
    fn lead(&self, bytes: u64) -> Duration {
        self.time_of(self.capacity(Class::Reply).saturating_add(HEADER + bytes))
    }
}

/// The sender's end.
#[derive(Debug, Default)]
pub(super) struct Departures {
    /// When the link has carried everything that was sent.
    free: Duration,
    /// Until when each frame is under way, and its bytes in memory.
    under_way: VecDeque<(Duration, u64)>,
    bytes: u64,
}

impl Departures {
    /// Returns when the last byte of a frame with so many bytes leaves, if it is sent now; `None`:
    /// there is no room.
    pub(super) fn next(
        &mut self,
        link: &Link,
        now: Duration,
        (class, bytes): (Class, u64),
    ) -> Option<Duration> {
        while let Some((until, bytes)) = self.under_way.front()
            && *until <= now
        {
            self.bytes -= bytes;
            self.under_way.pop_front();
        }
        let is_full = self.bytes + ENTRY + bytes > link.capacity(class);
        if is_full && !self.under_way.is_empty() {
            return None;
        }
        Some(now.max(self.free) + link.time_of(HEADER + bytes))
    }

    /// Notes that a frame was sent which departs at that time.
    pub(super) fn sent(&mut self, link: &Link, departs: Duration, bytes: u64) {
        self.free = departs;
        let bytes = ENTRY + bytes;
        self.bytes += bytes;
        self.under_way
            .push_back((departs.saturating_add(link.longest()), bytes));
    }
}

/// The receiver's end.
#[derive(Debug, Default)]
pub(super) struct Arrivals {
    queue: VecDeque<(Duration, RawFrame)>,
    bytes: u64,
    /// When the last frame was due, so that no later one is due before it.
    last: Duration,
}

impl Arrivals {
    /// Returns when a frame is due that says when it departed, and of which so many bytes arrived.
    /// `part`, of 0 to 1, is its part of the jitter. A peer can only make its own frames early: one
    /// that claims to depart later than any honest frame is due when that one would be.
    pub(super) fn due(
        &mut self,
        link: &Link,
        now: Duration,
        (departs, bytes): (Duration, u64),
        part: f64,
    ) -> Duration {
        let departs = departs.min(now.saturating_add(link.lead(bytes)));
        let jitter = link.jitter.mul_f64(part.clamp(0.0, 1.0));
        let due = departs.saturating_add(link.delay).saturating_add(jitter);
        self.last = self.last.max(due);
        self.last
    }

    /// Queues a frame until it is due.
    ///
    /// # Errors
    /// The peer sends more than may be under way.
    pub(super) fn enqueue(&mut self, due: Duration, frame: RawFrame) -> Result<(), Corrupt> {
        let bytes = self.bytes + ENTRY + frame.len();
        if bytes > QUEUED_MAX {
            let what = "more frames under way than a link has room for";
            return Err(Corrupt { what, value: bytes });
        }
        self.bytes = bytes;
        self.queue.push_back((due, frame));
        Ok(())
    }

    /// Takes the next frame, if it is due.
    pub(super) fn take(&mut self, now: Duration) -> Option<RawFrame> {
        self.next_due().filter(|due| *due <= now)?;
        let (_, frame) = self.queue.pop_front()?;
        self.bytes -= ENTRY + frame.len();
        Some(frame)
    }

    /// Returns when the next frame is due.
    pub(super) fn next_due(&self) -> Option<Duration> {
        self.queue.front().map(|(due, _)| *due)
    }

    /// Makes all queued frames due.
    #[cfg(test)]
    pub(super) fn make_due(&mut self) {
        for (due, _) in &mut self.queue {
            *due = Duration::ZERO;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const US: Duration = Duration::from_micros(1);
    const MS: Duration = Duration::from_millis(1);

    fn link(delay: Duration, jitter: Duration, rate: Option<u64>) -> Link {
        Link {
            delay,
            jitter,
            rate,
        }
    }

    fn frame(arg: u64, bytes: usize) -> RawFrame {
        RawFrame {
            class: Class::Request,
            kind: 1,
            arg,
            inline: Vec::new(),
            body: vec![0; bytes],
        }
    }

    /// Frames are due in the order in which they were sent, each within its jitter of the delay
    /// unless one before it is later, and none early.
    #[test]
    fn jitter_keeps_the_order() {
        let link = link(50 * US, 30 * US, None);
        let mut random = fastrand::Rng::with_seed(3);
        let (mut departures, mut arrivals) = (Departures::default(), Arrivals::default());
        let (mut now, mut last, mut spread) = (MS, Duration::ZERO, Duration::ZERO);
        for number in 0..1000 {
            now += US * random.u32(0..20);
            let departs = departures.next(&link, now, (Class::Request, 8)).unwrap();
            departures.sent(&link, departs, 8);
            assert_eq!(departs, now, "without a rate nothing waits for the link");
            let due = arrivals.due(&link, now, (departs, 8), random.f64());
            assert!(due >= last && due >= departs + link.delay);
            assert!(due <= departs + link.delay + link.jitter);
            (last, spread) = (due, spread.max(due - departs - link.delay));
            arrivals.enqueue(due, frame(number, 8)).unwrap();
        }
        assert!(spread > 20 * US, "{spread:?}");
        for number in 0..1000 {
            let due = arrivals.next_due().unwrap();
            assert_eq!(arrivals.take(due - Duration::from_nanos(1)), None);
            assert_eq!(arrivals.take(due).map(|frame| frame.arg), Some(number));
        }
        assert_eq!((arrivals.next_due(), arrivals.bytes), (None, 0));
    }

    /// Whatever their sizes, frames leave at the rate of the link, and an idle link saves nothing
    /// up.
    #[test]
    fn the_rate_is_kept() {
        let rate = 1_000_000;
        let link = link(Duration::ZERO, Duration::ZERO, Some(rate));
        let mut random = fastrand::Rng::with_seed(5);
        let mut departures = Departures::default();
        let (mut now, mut sent) = (3600 * 1000 * MS, 0);
        let start = now;
        while sent < 10 * rate {
            let bytes = random.u64(1..65_000);
            match departures.next(&link, now, (Class::Request, bytes)) {
                Some(departs) => {
                    sent += bytes;
                    assert!(departs - start >= Duration::from_micros(sent));
                    assert!(departs - now <= link.lead(bytes));
                    departures.sent(&link, departs, bytes);
                }
                None => now += 100 * US,
            }
        }
        let took = departures.free - start;
        assert!(took < Duration::from_micros(sent + sent / 100), "{took:?}");
    }

    /// What is under way is bounded in bytes; replies find room when requests do not (T3), and time
    /// makes room again. A receiver never has to queue more.
    #[test]
    fn what_is_under_way_is_bounded() {
        for rate in [None, Some(1 << 30), Some(1000)] {
            let link = link(MS, MS, rate);
            let mut departures = Departures::default();
            let mut send = |now, class, bytes| {
                let departs = departures.next(&link, now, (class, bytes));
                departs.inspect(|departs| departures.sent(&link, *departs, bytes))
            };
            let (mut bytes, mut last) = (0, Duration::ZERO);
            while let Some(departs) = send(MS, Class::Request, 64 << 10) {
                (bytes, last) = (bytes + (64 << 10), departs);
            }
            assert!(
                (CAPACITY_MIN / 2..=CAPACITY_MAX).contains(&bytes),
                "{rate:?}"
            );
            assert!(send(MS, Class::Reply, 30 << 10).is_some(), "{rate:?}");
            let later = last + link.longest();
            assert!(send(later, Class::Request, 64 << 10).is_some(), "{rate:?}");
            // Longer than the whole capacity: alone.
            let mut departures = Departures::default();
            let long = (Class::Request, 2 * CAPACITY_MAX);
            assert!(departures.next(&link, MS, long).is_some(), "{rate:?}");
        }
    }

    /// A peer that ignores what may be under way is found out, and one that lies about the time
    /// only delays its frames as long as a full link would.
    #[test]
    fn a_peer_that_lies_is_found_out() {
        let link = link(MS, Duration::ZERO, Some(1 << 20));
        let mut arrivals = Arrivals::default();
        let due = arrivals.due(&link, MS, (Duration::MAX, 8), 0.0);
        assert_eq!(due, MS + link.lead(8) + link.delay);
        assert!(due < Duration::from_secs(1));
        let early = arrivals.due(&link, MS, (Duration::ZERO, 8), 0.0);
        assert_eq!(early, due, "not before the frame that it follows");
        let queued = (0..).take_while(|n| arrivals.enqueue(due, frame(*n, 1 << 20)).is_ok());
        let queued = queued.count() as u64;
        assert!((CAPACITY_MAX >> 20..QUEUED_MAX >> 20).contains(&queued));
        assert!(arrivals.bytes <= QUEUED_MAX);
    }
}
