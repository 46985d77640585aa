//! The tables of a report as lines of text, cut to a terminal: a row is shown whole or not at all,
//! and a line says how many rows are not shown.

use super::report::Report;
use super::tables::{Section, headline, sections};
use crate::screen::printable;
use comfy_table::{ContentArrangement, LineStyle, Table, presets};

/// Separates rows in what is asked of the table, so that lines are known by row.
const MARK: char = '─';

/// The order in which the sections get the lines of a small terminal, by their place in
/// [`sections`]: who waits comes first.
const FIRST: [usize; 6] = [1, 0, 2, 3, 4, 5];

/// What a line is, for its colour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Headline,
    Title,
    Header,
    Row,
    /// A row about a process that waits.
    Wait,
    Note,
}

/// A line of text.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Line {
    pub(super) kind: Kind,
    pub(super) text: String,
}

impl Line {
    fn new(kind: Kind, text: impl Into<String>) -> Line {
        let text = text.into();
        Line { kind, text }
    }
}

/// A section as lines.
struct Part {
    section: Section,
    header: Vec<String>,
    /// The lines of each row.
    rows: Vec<Vec<String>>,
}

impl Part {
    fn new(section: Section, width: Option<u16>) -> Part {
        let mut table = Table::new();
        let between = LineStyle::none().fill(MARK).junction(MARK);
        let style = presets::NOTHING.header_separator(between);
        table
            .load_style(style.row_separator(between))
            .set_header(section.header);
        let rows = section.rows.iter();
        table.add_rows(rows.map(|row| row.iter().map(|cell| printable(cell))));
        if let Some(width) = width {
            table
                .set_content_arrangement(ContentArrangement::Dynamic)
                .set_width(width.max(10));
        }
        let mut groups = vec![Vec::new()];
        for line in table.lines() {
            match !line.is_empty() && line.chars().all(|letter| letter == MARK) {
                true => groups.push(Vec::new()),
                false => {
                    let last = groups.len() - 1;
                    groups[last].push(line.trim_end().to_owned());
                }
            }
        }
        let header = groups.remove(0);
        // Below the header is a mark even if there are no rows.
        groups.truncate(section.rows.len());
        Part {
            section,
            header,
            rows: groups,
        }
    }

    /// Returns how many lines it takes with its first `shown` rows.
    fn height(&self, shown: usize) -> usize {
        if shown == 0 {
            return 1;
        }
        let rows: usize = self.rows[..shown].iter().map(Vec::len).sum();
        1 + self.header.len() + rows + usize::from(shown < self.rows.len())
    }

    /// Adds its first `shown` rows.
    fn print(self, shown: usize, lines: &mut Vec<Line>) {
        let (title, all) = (&self.section.title, self.rows.len());
        if all == 0 {
            let nothing = self.section.nothing;
            return lines.push(Line::new(Kind::Note, format!("{title}: {nothing}")));
        }
        if shown == 0 {
            let text = format!("{title}: {} not shown", rows_are(all));
            return lines.push(Line::new(Kind::Note, text));
        }
        lines.push(Line::new(Kind::Title, format!("── {title}")));
        let header = self.header.into_iter();
        lines.extend(header.map(|text| Line::new(Kind::Header, text)));
        let kind = match self.section.is_about_waits {
            true => Kind::Wait,
            false => Kind::Row,
        };
        let rows = self.rows.into_iter().take(shown).flatten();
        lines.extend(rows.map(|text| Line::new(kind, text)));
        if shown < all {
            let more = rows_are(all - shown);
            let text = format!(" … {more} not shown: enlarge the terminal, or use --once");
            lines.push(Line::new(Kind::Note, text));
        }
    }
}

fn rows_are(count: usize) -> String {
    match count {
        1 => "1 row is".to_owned(),
        _ => format!("{count} rows are"),
    }
}

/// Returns the report as lines that are at most `width` wide; all of them if there is no `height`.
pub(super) fn lines(report: &Report, width: Option<u16>, height: Option<u16>) -> Vec<Line> {
    let parts = sections(report).map(|section| Part::new(section, width));
    let mut lines = vec![Line::new(Kind::Headline, printable(&headline(report)))];
    let height = height.map(usize::from);
    let shown = match height {
        Some(height) => allot(&parts, height.saturating_sub(1)),
        None => parts.each_ref().map(|part| part.rows.len()),
    };
    let pairs = || parts.iter().zip(shown);
    let used: usize = 1 + pairs()
        .map(|(part, shown)| part.height(shown))
        .sum::<usize>();
    let mut left = height.map_or(usize::MAX, |height| height.saturating_sub(used));
    for (part, shown) in parts.into_iter().zip(shown) {
        let is_there = !part.rows.is_empty() && shown == part.rows.len();
        let notes = part.section.notes;
        if height.is_none() {
            lines.push(Line::new(Kind::Note, ""));
        }
        part.print(shown, &mut lines);
        if is_there && notes.len() <= left {
            left -= notes.len();
            lines.extend(
                notes
                    .iter()
                    .map(|note| Line::new(Kind::Note, format!(" {note}"))),
            );
        }
    }
    if let Some(height) = height.filter(|height| lines.len() > *height) {
        lines.truncate(height.saturating_sub(1));
        lines.push(Line::new(
            Kind::Note,
            "… more is not shown: enlarge the terminal",
        ));
    }
    if let Some(width) = width {
        lines
            .iter_mut()
            .for_each(|line| cut(&mut line.text, width.into()));
    }
    lines
}

/// Returns how many rows of each part are shown in `height` lines: one more of each in turn.
fn allot(parts: &[Part; 6], height: usize) -> [usize; 6] {
    let mut shown = [0; 6];
    let mut used: usize = parts.iter().map(|part| part.height(0)).sum();
    loop {
        let before = shown;
        for at in FIRST {
            let (part, now) = (&parts[at], shown[at]);
            if now == part.rows.len() {
                continue;
            }
            let next = used - part.height(now) + part.height(now + 1);
            if next <= height {
                (used, shown[at]) = (next, now + 1);
            }
        }
        if shown == before {
            return shown;
        }
    }
}

/// Cuts a line that is wider, with a sign.
fn cut(text: &mut String, width: usize) {
    if text.chars().count() > width {
        let end = text.char_indices().nth(width.saturating_sub(1));
        text.truncate(end.map_or(0, |(at, _)| at));
        text.push('…');
    }
}

#[cfg(test)]
mod tests {
    use super::super::report::{Named, Stream, Unit, Waiter};
    use super::*;

    fn report(streams: usize, waits: u32, units: u32) -> Report {
        let reader = Named {
            name: "viewer.0".to_owned(),
            pid: Some(88),
            state: Some("stopped"),
        };
        let wait = |rank| Waiter {
            stream: Some("field".to_owned()),
            who: format!("solver.{rank}"),
            peer: rank,
            pid: Some(77),
            state: Some("asleep"),
            waits_for: "the reader group viewer, which is 2 steps behind".to_owned(),
            waits_on: vec![reader.clone()],
            seconds: 1.25,
        };
        let stream = |number| Stream {
            name: format!("a stream with quite a long name {number}"),
            writer: "solver".to_owned(),
            ranks_here: 2,
            ranks: 2,
            state: "open".to_owned(),
            steps: 12_345,
            bytes: 1 << 40,
            held_steps: 3,
            memory: 1 << 30,
            bytes_per_second: 1e9,
            age_seconds: 3.0,
            readers: Vec::new(),
            subscriptions: 1,
            news: 2,
        };
        let unit = |rank| Unit {
            peer: rank,
            pid: 77,
            job: "job".to_owned(),
            program: "solver".to_owned(),
            rank,
            ranks: units,
            state: "running",
            resident: 1 << 20,
        };
        Report {
            services: Vec::new(),
            chunks: Vec::new(),
            more_chunks: 0,
            more: 0,
            domain: "test".to_owned(),
            agent_pid: 7,
            budget: 1 << 30,
            granted: 1 << 20,
            resident: 0,
            streams: (0..streams).map(stream).collect(),
            block_stores: Vec::new(),
            waits: (0..waits).map(wait).collect(),
            units: (0..units).map(unit).collect(),
        }
    }

    fn texts(lines: &[Line]) -> Vec<&str> {
        lines.iter().map(|line| line.text.as_str()).collect()
    }

    #[test]
    fn what_fits_is_shown_whole() {
        let lines = lines(&report(1, 2, 2), Some(80), Some(24));
        let texts = texts(&lines);
        assert!(lines.len() <= 24, "{texts:#?}");
        assert_eq!(
            texts[0],
            "domain test: agent 7, 1.0 MiB of 1.0 GiB granted, 0 B resident"
        );
        let count = |part: &str| texts.iter().filter(|text| text.contains(part)).count();
        assert_eq!(count("solver.0 (pid 77)"), 1, "{texts:#?}");
        assert_eq!(count("solver.1 (pid 77)"), 1, "{texts:#?}");
        // Wrapped, perhaps, but there.
        let all = texts.join(" ");
        let words: Vec<&str> = all.split_whitespace().collect();
        let all = words.join(" ");
        assert!(all.contains("stopped)"), "{texts:#?}");
        assert_eq!(count("not shown"), 0, "{texts:#?}");
        assert_eq!(count("block stores: there is no block store"), 1);
    }

    /// However small the terminal is, nothing is wider or higher, what is left out is said, and who
    /// waits comes before all else.
    #[test]
    fn what_does_not_fit_is_counted() {
        let report = report(40, 30, 50);
        for (width, height) in [(80, 24), (100, 30), (60, 12), (132, 50), (20, 8)] {
            let lines = lines(&report, Some(width), Some(height));
            let texts = texts(&lines);
            assert!(lines.len() <= height.into(), "{texts:#?}");
            let widest = texts.iter().map(|text| text.chars().count()).max();
            assert!(widest <= Some(width.into()), "{texts:#?}");
        }
        let lines = lines(&report, Some(80), Some(24));
        let texts = texts(&lines);
        let shown = |kind| lines.iter().filter(|line| line.kind == kind).count();
        assert!(shown(Kind::Wait) > 0, "{texts:#?}");
        let counts: Vec<usize> = texts
            .iter()
            .filter(|text| text.contains("not shown"))
            .flat_map(|text| text.split_whitespace())
            .filter_map(|word| word.parse().ok())
            .collect();
        // Of 80 rows of streams, 30 of waits and 50 of units.
        assert_eq!(counts.len(), 3, "{texts:#?}");
        let first = |part: &str| texts.iter().filter(|text| text.starts_with(part)).count();
        let waits = first(" field");
        assert_eq!(counts[1], 30 - waits, "{texts:#?}");
        let units = first(" solver.");
        assert_eq!(counts[2], 50 - units, "{texts:#?}");
    }

    #[test]
    fn a_terminal_that_is_too_small_is_no_error() {
        for (width, height) in [(0, 0), (1, 1), (3, 2), (300, 2), (5, 40)] {
            let lines = lines(&report(2, 2, 2), Some(width), Some(height));
            assert!(lines.len() <= usize::from(height).max(1), "{lines:#?}");
        }
    }

    /// Without a terminal nothing is wrapped or left out.
    #[test]
    fn without_a_terminal_everything_is_shown() {
        let lines = lines(&report(40, 30, 50), None, None);
        let texts = texts(&lines);
        assert!(!texts.iter().any(|text| text.contains('…')), "{texts:#?}");
        let waits = lines.iter().filter(|line| line.kind == Kind::Wait);
        assert_eq!(waits.count(), 30);
        assert!(
            texts.iter().any(|text| text.contains(
                "the reader group viewer, which is 2 steps behind: viewer.0 (pid 88, stopped)"
            )),
            "{texts:#?}"
        );
    }

    #[test]
    fn names_do_not_move_the_cursor() {
        let mut report = report(1, 0, 0);
        report.streams[0].name = "a\x1b[2J\nb".to_owned();
        let lines = lines(&report, Some(80), Some(24));
        let is_plain = |line: &Line| !line.text.chars().any(char::is_control);
        assert!(lines.iter().all(is_plain), "{lines:#?}");
    }
}
