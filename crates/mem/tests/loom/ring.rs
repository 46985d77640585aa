//! Frames and bodies through a ring.

use crate::model;
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, Ordering};
use loom::thread;
use samite_mem::ring::{CELLS, Consumer, Medium, Producer};

pub(crate) const LINE: usize = 64;
const BULK_LINES: usize = 4;

/// A ring and its bulk area in memory that loom watches.
struct Memory {
    headers: Vec<AtomicU64>,
    cells: Vec<UnsafeCell<[u8; LINE]>>,
    bulk: Vec<UnsafeCell<[u8; LINE]>>,
    head: AtomicU64,
    bulk_head: AtomicU64,
    /// Size of the bulk area, once there is one.
    bulk_bytes: AtomicU64,
}

impl Memory {
    fn new() -> Arc<Memory> {
        let bytes = || UnsafeCell::new([0; LINE]);
        Arc::new(Memory {
            headers: (0..CELLS).map(|_| AtomicU64::new(0)).collect(),
            cells: (0..CELLS).map(|_| bytes()).collect(),
            bulk: (0..BULK_LINES).map(|_| bytes()).collect(),
            head: AtomicU64::new(0),
            bulk_head: AtomicU64::new(0),
            bulk_bytes: AtomicU64::new(0),
        })
    }

    /// Bodies of these models are whole lines.
    fn bulk_lines(&self, offset: u64, bytes: u64) -> &[UnsafeCell<[u8; LINE]>] {
        let first = offset as usize / LINE % BULK_LINES;
        &self.bulk[first..first + bytes as usize / LINE]
    }
}

pub(crate) fn write(cell: &UnsafeCell<[u8; LINE]>, at: usize, from: &[u8]) {
    // SAFETY: loom fails the model if anybody else is inside or not ordered against this.
    cell.with_mut(|bytes| unsafe { (&mut *bytes)[at..at + from.len()].copy_from_slice(from) });
}

pub(crate) fn read(cell: &UnsafeCell<[u8; LINE]>, at: usize, into: &mut [u8]) {
    // SAFETY: as in `write`.
    cell.with(|bytes| unsafe { into.copy_from_slice(&(&*bytes)[at..at + into.len()]) });
}

#[derive(Clone)]
struct End(Arc<Memory>);

impl Medium for End {
    fn header(&self, cell: u64) -> &AtomicU64 {
        &self.0.headers[cell as usize]
    }
    fn head(&self) -> &AtomicU64 {
        &self.0.head
    }
    fn bulk_head(&self) -> &AtomicU64 {
        &self.0.bulk_head
    }
    fn write(&self, cell: u64, at: usize, from: &[u8]) {
        write(&self.0.cells[cell as usize], at, from);
    }
    fn read(&self, cell: u64, at: usize, into: &mut [u8]) {
        read(&self.0.cells[cell as usize], at, into);
    }
}

fn content(number: u64, len: usize) -> Vec<u8> {
    (0..len)
        .map(|at| (number as u8).wrapping_mul(31).wrapping_add(at as u8))
        .collect()
}

/// Frames of one and two cells, one and a half laps: all arrive, whole and in order.
#[test]
fn frames_go_round() {
    const FRAMES: [usize; 4] = [8, 60, 104, 48];
    model(5, || {
        let memory = Memory::new();
        let mut producer = Producer::new(End(memory.clone()));
        let sender = thread::spawn(move || {
            for (number, len) in FRAMES.into_iter().enumerate() {
                let inline = content(number as u64, len);
                while producer.push(7, number as u64, &inline, 0).is_err() {
                    thread::yield_now();
                }
            }
        });
        let mut consumer = Consumer::new(End(memory));
        for (number, len) in FRAMES.into_iter().enumerate() {
            loop {
                if let Some(frame) = consumer.peek().unwrap() {
                    assert_eq!((frame.kind, frame.arg), (7, number as u64));
                    assert_eq!(frame.inline, content(number as u64, len));
                    break;
                }
                thread::yield_now();
            }
            consumer.advance();
        }
        assert!(consumer.peek().unwrap().is_none());
        sender.join().unwrap();
    });
}

/// Bodies in the bulk area, one lap and more, with a skipped end.
#[test]
fn bodies_go_round() {
    const BODIES: [usize; 4] = [1, 2, 2, 1];
    model(5, || {
        let memory = Memory::new();
        let area = (BULK_LINES * LINE) as u64;
        let mut producer = Producer::new(End(memory.clone()));
        producer.set_bulk_bytes(area);
        let sender = thread::spawn(move || {
            for (number, lines) in BODIES.into_iter().enumerate() {
                let bytes = (lines * LINE) as u64;
                let start = loop {
                    match producer.reserve_bulk(0, bytes, 0) {
                        Ok(start) => break start,
                        Err(_) => thread::yield_now(),
                    }
                };
                for line in producer.medium.0.bulk_lines(start, bytes) {
                    write(line, 0, &content(number as u64, LINE));
                }
                producer.push_bulk(9, number as u64, &[], start, bytes);
            }
        });
        let mut consumer = Consumer::new(End(memory));
        consumer.set_bulk(area, area);
        for (number, lines) in BODIES.into_iter().enumerate() {
            loop {
                if let Some((frame, medium)) = consumer.peek_with_medium().unwrap() {
                    let (offset, bytes) = frame.bulk.unwrap();
                    assert_eq!((frame.arg, bytes), (number as u64, (lines * LINE) as u64));
                    for line in medium.0.bulk_lines(offset, bytes) {
                        let mut seen = [0; LINE];
                        read(line, 0, &mut seen);
                        assert_eq!(seen.to_vec(), content(number as u64, LINE));
                    }
                    break;
                }
                thread::yield_now();
            }
            consumer.advance();
        }
        sender.join().unwrap();
    });
}

/// A consumer that sees the first frame with a body finds the bulk area, which was made before it.
#[test]
fn the_bulk_area_is_there_before_its_first_body() {
    model(5, || {
        let memory = Memory::new();
        let area = (BULK_LINES * LINE) as u64;
        let mut producer = Producer::new(End(memory.clone()));
        let sender = thread::spawn(move || {
            producer.set_bulk_bytes(area);
            // As `SharedRing::publish_bulk`.
            producer.medium.0.bulk_bytes.store(area, Ordering::Release);
            let start = producer.reserve_bulk(0, LINE as u64, 0).unwrap();
            for line in producer.medium.0.bulk_lines(start, LINE as u64) {
                write(line, 0, &content(1, LINE));
            }
            producer.push_bulk(9, 1, &[], start, LINE as u64);
        });
        let mut consumer = Consumer::new(End(memory));
        loop {
            if let Some(frame) = consumer.peek().expect("an honest producer is not corrupt") {
                break assert_eq!(frame.bulk, Some((0, LINE as u64)));
            }
            if consumer.next_has_body() == Some(true) {
                // As `SharedRing::attach_bulk`.
                let bytes = consumer.medium.0.bulk_bytes.load(Ordering::Acquire);
                // The transport takes a producer without an area for one that is corrupt.
                assert_eq!(bytes, area);
                consumer.set_bulk(bytes, bytes);
            } else {
                thread::yield_now();
            }
        }
        sender.join().unwrap();
    });
}
