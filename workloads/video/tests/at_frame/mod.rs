//! Stops a worker while it has a frame.

use samite_testkit::pause;
use std::fmt::Debug;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

/// It has read a frame.
pub(crate) const BEGINS: &str = "frame begins";
/// It has written the result, and has not given it.
#[allow(dead_code, reason = "not all tests need it")]
pub(crate) const ENDS: &str = "frame ends";
/// It has given the result.
#[allow(dead_code, reason = "not all tests need it")]
pub(crate) const GIVEN: &str = "result given";

/// Lets the worker of this process pause at these points of its n-th frames, counted from 0.
pub(crate) fn pause_at(points: &'static [(&'static str, u64)]) {
    let all = tracing::subscriber::set_global_default(AtFrame(points));
    all.expect("nobody else listens");
}

struct AtFrame(&'static [(&'static str, u64)]);

impl Subscriber for AtFrame {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("samite_video")
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut said = Said::default();
        event.record(&mut said);
        let mut points = self.0.iter();
        let is_it = |(what, frame): &&(_, u64)| said.what == *what && said.frame == Some(*frame);
        if let Some((what, _)) = points.find(is_it) {
            pause(what);
        }
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// What a worker says of a frame.
#[derive(Default)]
struct Said {
    what: String,
    frame: Option<u64>,
}

impl Visit for Said {
    fn record_u64(&mut self, field: &Field, value: u64) {
        if field.name() == "frame" {
            self.frame = Some(value);
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        if field.name() == "message" {
            self.what = format!("{value:?}");
        }
    }
}
