// The ticks of an axis, about `count` of them: at multiples of 1, 2 or 5 times a power of ten.
const axisTicks = (low, high, count) => {
  const rough = (high - low) / count;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((each) => each >= rough * 0.999);
  const first = Math.ceil(low / step - 1e-9);
  const number = Math.max(0, Math.floor(high / step + 1e-9) - first + 1);
  const digits = Math.max(0, -Math.floor(Math.log10(step) + 1e-9));
  return { digits, values: Array.from({ length: number }, (_, i) => (first + i) * step) };
};
