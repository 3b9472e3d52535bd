//! The pictures: goodput against message size, rate against message size, the histogram of latencies, goodput against loss.
//!
//! In: figures by id. Out: an SVG each, the same bytes for the same figures; none for a picture that lacks a figure.

use crate::{figure::Figure, latency, loss, throughput};
use plotters::{
    coord::{Shift, ranged1d::ValueFormatter, types::RangedCoordf64},
    prelude::*,
};
use std::{collections::BTreeMap, error::Error, ops::Range, path::Path};

type Canvas<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Figures = BTreeMap<String, f64>;
type Outcome = Result<(), Box<dyn Error>>;

const SIZE: (u32, u32) = (760, 420);
/// Red, blue, green, of equal weight.
const COLOURS: [RGBColor; 3] = [RGBColor(200, 60, 50), RGBColor(50, 100, 190), RGBColor(60, 140, 80)];

/// Draws what can be drawn into `folder`.
pub fn draw(folder: &Path, figures: &[Figure]) {
    let figures: &Figures = &figures.iter().map(|figure| (figure.id.clone(), figure.value)).collect();
    std::fs::create_dir_all(folder).unwrap_or_else(|error| panic!("make {}: {error}", folder.display()));
    for (name, picture) in [
        ("goodput.svg", goodput as fn(&Canvas<'_>, &Figures) -> Outcome),
        ("rate.svg", rate),
        ("latency.svg", histogram),
        ("loss.svg", lossy),
    ] {
        let mut text = String::new();
        {
            let canvas = SVGBackend::with_string(&mut text, SIZE).into_drawing_area();
            canvas.fill(&WHITE).expect("a canvas");
            if let Err(why) = picture(&canvas, figures) {
                eprintln!("{name} is not drawn: {why}");
                continue;
            }
            canvas.present().expect("a string takes it");
        }
        let path = folder.join(name);
        std::fs::write(&path, text).unwrap_or_else(|error| panic!("write {}: {error}", path.display()));
    }
}

fn find(figures: &Figures, id: &str) -> Result<f64, String> {
    figures.get(id).copied().ok_or_else(|| format!("{id} was not measured"))
}

/// A line of points, its name in the legend; a bound is drawn thin and without points.
struct Line {
    name: String,
    colour: RGBColor,
    points: Vec<(f64, f64)>,
    bound: bool,
}

/// Lines over a logarithmic axis.
fn lines(
    canvas: &Canvas<'_>,
    caption: &str,
    (x, x_name): (Range<f64>, &str),
    (y, y_name): (Range<f64>, &str),
    (base, x_label): (f64, impl Fn(&f64) -> String),
    position: SeriesLabelPosition,
    lines: Vec<Line>,
) -> Outcome {
    let mut chart = ChartBuilder::on(canvas);
    chart.caption(caption, ("sans-serif", 17)).margin(12).x_label_area_size(42).y_label_area_size(52);
    let mut chart = chart.build_cartesian_2d(x.log_scale().base(base), y)?;
    mesh(&mut chart, x_name, y_name, x_label)?;
    for Line { name, colour, points, bound } in lines {
        let style = if bound { colour.mix(0.6).stroke_width(1) } else { colour.stroke_width(2) };
        let drawn = chart.draw_series(LineSeries::new(points.iter().copied(), style))?;
        drawn.label(name).legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], style));
        if !bound {
            chart.draw_series(points.iter().map(|point| Circle::new(*point, 3, colour.filled())))?;
        }
    }
    legend(&mut chart, position)
}

type Chart<'a, 'b, X> = ChartContext<'a, SVGBackend<'b>, Cartesian2d<X, RangedCoordf64>>;

fn mesh<X>(chart: &mut Chart<'_, '_, X>, x: &str, y: &str, label: impl Fn(&f64) -> String) -> Outcome
where
    X: Ranged<ValueType = f64> + ValueFormatter<f64>,
{
    let grey = RGBColor(225, 225, 225);
    let mut mesh = chart.configure_mesh();
    mesh.x_desc(x).y_desc(y).x_label_formatter(&label).light_line_style(WHITE).bold_line_style(grey);
    Ok(mesh.draw()?)
}

fn legend<'a, 'b: 'a, X: Ranged<ValueType = f64>>(
    chart: &mut Chart<'a, 'b, X>,
    position: SeriesLabelPosition,
) -> Outcome {
    let mut labels = chart.configure_series_labels();
    labels.position(position).background_style(WHITE.mix(0.8));
    Ok(labels.border_style(BLACK.mix(0.3)).draw()?)
}

fn bytes(size: &f64) -> String {
    let size = size.round() as u64;
    if size >= 1024 { format!("{} KiB", size / 1024) } else { size.to_string() }
}

/// Messages of 4 bytes to `most` in fine steps, for bounds.
fn fine(least: f64, most: f64) -> impl Iterator<Item = f64> {
    (0..=200).map(move |i| least * (most / least).powf(f64::from(i) / 200.0))
}

fn goodput(canvas: &Canvas<'_>, figures: &Figures) -> Outcome {
    let mut all = Vec::new();
    for ((mtu, points), colour) in throughput::goodput_series().into_iter().zip(COLOURS) {
        let bound = |length: f64| throughput::goodput_bound(length as usize, mtu as usize, false);
        let curve = fine(64.0, 65536.0).map(|length| (length, bound(length))).collect();
        let points = points.into_iter().map(|(length, id)| Ok((length as f64, find(figures, &id)?)));
        let points = points.collect::<Result<_, String>>()?;
        all.push(Line { name: format!("MTU {mtu}"), colour, points, bound: false });
        all.push(Line {
            name: format!("what the line carries at {mtu}"),
            colour,
            points: curve,
            bound: true,
        });
    }
    let caption = "Goodput of WRITEs, one QP, 100 Gb/s, 512 bit at 250 MHz";
    lines(
        canvas,
        caption,
        (64.0..65536.0, "bytes of a message"),
        (0.0..100.0, "Gb/s"),
        (2.0, bytes),
        SeriesLabelPosition::LowerRight,
        all,
    )
}

fn rate(canvas: &Canvas<'_>, figures: &Figures) -> Outcome {
    let mut all = Vec::new();
    for ((name, points), colour) in throughput::rate_series().into_iter().zip(COLOURS) {
        let curve =
            fine(8.0, 1024.0).map(|length| (length, throughput::rate_bound(length as usize, name == "read")));
        let curve = curve.collect();
        let points = points.into_iter().map(|(length, id)| Ok((length as f64, find(figures, &id)?)));
        let points = points.collect::<Result<_, String>>()?;
        let verb = name.to_uppercase();
        all.push(Line { name: format!("{verb}s of 16 QPs"), colour, points, bound: false });
        let name = format!("what line and datapath carry of {verb}s");
        all.push(Line { name, colour, points: curve, bound: true });
    }
    let caption = "Messages per second, 16 QPs, 1 in 16 signalled, 512 bit at 250 MHz";
    lines(
        canvas,
        caption,
        (8.0..1024.0, "bytes of a message"),
        (0.0..130.0, "millions per second"),
        (2.0, bytes),
        SeriesLabelPosition::UpperRight,
        all,
    )
}

fn histogram(canvas: &Canvas<'_>, figures: &Figures) -> Outcome {
    let class = |id: &str| -> Option<(f64, f64)> {
        let (name, from) = id.rsplit_once("_at_")?;
        latency::PINGPONGS.contains(&name).then_some((from.parse().ok()?, figures[id]))
    };
    let all: Vec<(f64, f64)> = figures.keys().filter_map(|id| class(id)).collect();
    let width = latency::CLASS as f64 / 1000.0;
    let high = all.iter().map(|class| class.0).fold(0.0, f64::max) + 2.0 * width;
    let most = all.iter().map(|class| class.1).fold(0.0, f64::max);
    let mut chart = ChartBuilder::on(canvas);
    let caption = "Half round trips of a pushed WRITE of 64 bytes";
    chart.caption(caption, ("sans-serif", 17)).margin(12).x_label_area_size(42).y_label_area_size(52);
    let mut chart = chart.build_cartesian_2d(0.0..high, 0.0..most * 1.1)?;
    mesh(&mut chart, "ns", "round trips", |ns| format!("{ns:.0}"))?;
    let names = ["idle cards", "beside WRITEs of 64 KiB from one side"];
    for ((id, name), colour) in latency::PINGPONGS.into_iter().zip(names).zip(COLOURS) {
        find(figures, id)?;
        let of_this = figures.keys().filter(|key| key.rsplit_once("_at_").is_some_and(|(of, _)| of == id));
        let bars = of_this.filter_map(|key| class(key)).map(|(from, count)| {
            Rectangle::new([(from, 0.0), (from + width, count)], colour.mix(0.7).filled())
        });
        let drawn = chart.draw_series(bars)?;
        drawn
            .label(name)
            .legend(move |(x, y)| Rectangle::new([(x, y - 4), (x + 18, y + 4)], colour.filled()));
    }
    legend(&mut chart, SeriesLabelPosition::UpperMiddle)
}

fn lossy(canvas: &Canvas<'_>, figures: &Figures) -> Outcome {
    let mut all = Vec::new();
    for (round_trip, colour) in loss::ROUND_TRIPS.into_iter().zip(COLOURS) {
        let points = loss::LOSSES.map(|(name, p)| Ok((p, find(figures, &loss::id(name, round_trip))?)));
        let points = points.into_iter().collect::<Result<_, String>>()?;
        all.push(Line { name: format!("wire RTT {round_trip} us"), colour, points, bound: false });
        let points = fine(0.05, 10.0).map(|p| (p, loss::bound(p, round_trip))).collect();
        all.push(Line { name: "go-back-N".to_owned(), colour, points, bound: true });
    }
    let caption = "Goodput of one QP under loss each way, MTU 4096, of that without loss";
    let percent = |p: &f64| format!("{p} %");
    lines(
        canvas,
        caption,
        (0.05..10.0, "packets lost"),
        (0.0..100.0, "%"),
        (10.0, percent),
        SeriesLabelPosition::LowerLeft,
        all,
    )
}
