/* Draws every mark once few enough of them are in sight, else the overview; run when a range of the figure moves. */
const [left, right] = [figure.x_range.start, figure.x_range.end];
const [lower, upper] = [figure.y_range.start, figure.y_range.end];
let inSight = 0;
for (const {close} of sources) {
  const {begin, end, top, bottom} = close.data;
  for (let i = 0; i < begin.length && inSight <= most; i++)
    if (begin[i] < right && end[i] > left && top[i] < lower && bottom[i] > upper) inSight++;
}
const isClose = inSight <= most ? 1 : 0;
if (isClose !== state.data.close[0]) {
  state.data.close[0] = isClose;
  for (const {shown, close, overview} of sources) shown.data = (isClose ? close : overview).data;
}
