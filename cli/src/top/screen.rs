//! The live view: draws the tables of a report repeatedly, until a key ends it.

use super::report::Report;
use super::sample::{Connected, Sample};
use super::tables::{Section, headline, sections};
use anyhow::{Context, Result};
use ratatui::Frame;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Style, Stylize};
use ratatui::text::Line;
use ratatui::widgets::{Block, Borders, Paragraph, Row, Table};
use std::time::{Duration, Instant};

/// Draws the domain every `interval` until `q`, Escape or Ctrl-C, and then restores the terminal.
///
/// # Errors
/// The terminal cannot be drawn on; the domain is gone.
pub(super) fn live(stage: &Connected<'_>, first: Sample, interval: Duration) -> Result<()> {
    let mut terminal = ratatui::try_init()
        .context("there is no terminal to draw on: use `samite top --once`, or --json")?;
    let result = turn(&mut terminal, stage, first, interval);
    ratatui::try_restore()?;
    result
}

fn turn(
    terminal: &mut ratatui::DefaultTerminal,
    stage: &Connected<'_>,
    mut last: Sample,
    interval: Duration,
) -> Result<()> {
    let mut report = Report::new(&last, None);
    loop {
        terminal.draw(|frame| draw(frame, &report))?;
        let drawn = Instant::now();
        // At least one look at the keyboard, however short the interval is.
        while event::poll(interval.saturating_sub(drawn.elapsed()))? {
            match event::read()? {
                Event::Key(key) if key.kind == KeyEventKind::Press && ends(key) => return Ok(()),
                Event::Resize(..) => {
                    terminal.draw(|frame| draw(frame, &report))?;
                }
                _ => {}
            }
        }
        let sample = stage.sample()?;
        report = Report::new(&sample, Some(&last));
        last = sample;
    }
}

fn ends(key: event::KeyEvent) -> bool {
    let control = key.modifiers.contains(KeyModifiers::CONTROL);
    match key.code {
        KeyCode::Char('q') | KeyCode::Esc => true,
        KeyCode::Char('c') => control,
        _ => false,
    }
}

/// Draws the domain in one line, and the tables below: each as high as its rows, the last with the
/// remaining space.
pub(super) fn draw(frame: &mut Frame<'_>, report: &Report) {
    let sections = sections(report);
    let heights = sections.iter().map(|section| {
        let rows = section.rows.len().max(1) as u16;
        Constraint::Max(rows.saturating_add(3))
    });
    let areas = [Constraint::Length(1)].into_iter().chain(heights);
    let areas = areas.chain([Constraint::Min(0), Constraint::Length(1)]);
    let areas = Layout::vertical(areas).split(frame.area());
    frame.render_widget(Line::from(headline(report)).bold(), areas[0]);
    for (section, area) in sections.into_iter().zip(&areas[1..]) {
        draw_section(frame, section, *area);
    }
    let keys = Line::from("q: quit").style(Style::new().fg(Color::DarkGray));
    frame.render_widget(keys, areas[areas.len() - 1]);
}

fn draw_section(frame: &mut Frame<'_>, section: Section, area: Rect) {
    let block = Block::new()
        .borders(Borders::TOP)
        .border_style(Style::new().fg(Color::DarkGray))
        .title(Line::from(format!(" {} ", section.title)).fg(Color::Cyan));
    if section.rows.is_empty() {
        let nothing = Line::from(section.nothing).fg(Color::DarkGray);
        return frame.render_widget(Paragraph::new(nothing).block(block), area);
    }
    let columns = 0..section.header.len();
    let widths = columns.map(|column| {
        let cells = section.rows.iter().map(|row| row[column].chars().count());
        let widest = cells.max().unwrap_or(0).max(section.header[column].len());
        Constraint::Max(widest as u16)
    });
    let header = Row::new(section.header.iter().copied()).bold();
    let rows = section.rows.iter().map(|row| {
        let row_style = match section.title.starts_with("who waits") {
            true => Style::new().fg(Color::Yellow),
            false => Style::new(),
        };
        Row::new(row.iter().map(String::as_str)).style(row_style)
    });
    let table = Table::new(rows, widths.collect::<Vec<_>>())
        .header(header)
        .column_spacing(2)
        .block(block);
    frame.render_widget(table, area);
}

#[cfg(test)]
mod tests {
    use super::super::report::Waiter;
    use super::*;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    fn drawn(report: &Report, width: u16, height: u16) -> Vec<String> {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).expect("a terminal");
        let drawn = terminal.draw(|frame| draw(frame, report)).expect("drawn");
        let cells = drawn.buffer.content();
        let lines = cells.chunks(width.into());
        let line = |cells: &[ratatui::buffer::Cell]| {
            let text: String = cells.iter().map(|cell| cell.symbol()).collect();
            text.trim_end().to_owned()
        };
        lines.map(line).collect()
    }

    #[test]
    fn what_there_is_fits_on_a_screen_of_any_size() {
        let wait = |rank| Waiter {
            stream: Some("field".to_owned()),
            who: format!("solver.{rank}"),
            peer: rank,
            pid: Some(77),
            waits_for: "a first reader; 2 steps are unread".to_owned(),
            seconds: 1.25,
        };
        let report = Report {
            services: Vec::new(),
            more: 0,
            domain: "test".to_owned(),
            agent_pid: 7,
            budget: 1 << 30,
            granted: 1 << 20,
            resident: 0,
            streams: Vec::new(),
            block_stores: Vec::new(),
            waits: (0..3).map(wait).collect(),
            units: Vec::new(),
        };
        let lines = drawn(&report, 100, 30);
        assert_eq!(
            lines[0],
            "domain test: agent 7, 1.0 MiB of 1.0 GiB granted, 0 B resident"
        );
        let said = |text: &str| lines.iter().any(|line| line.contains(text));
        assert!(
            said("no stream is open") && said("there is no block store"),
            "{lines:#?}"
        );
        let rows = lines.iter().filter(|line| line.contains("solver."));
        let rows: Vec<&String> = rows.collect();
        assert_eq!(
            rows[2],
            "field   solver.2  77   a first reader; 2 steps are unread  1.2 s"
        );
        assert_eq!(lines[29], "q: quit");
        // A terminal that is too small is not an error.
        for (width, height) in [(1, 1), (20, 5), (300, 2)] {
            drawn(&report, width, height);
        }
    }
}
