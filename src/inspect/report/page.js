
'use strict';
(() => {
  const figures = JSON.parse(document.getElementById('figures').textContent);

  // The value at a JSON pointer (RFC 6901).
  const at = pointer => pointer.split('/').slice(1)
    .reduce((value, token) => value?.[token.replaceAll('~1', '/').replaceAll('~0', '~')], figures);

  const element = (name, attributes = {}, text = '') => {
    const made = document.createElement(name);
    Object.entries(attributes).forEach(([key, value]) => made.setAttribute(key, value));
    made.textContent = text;
    return made;
  };

  const time = ms => ms < 1 ? `${(ms * 1000).toFixed(0)} µs` : ms < 1000 ? `${ms.toFixed(2)} ms` : `${(ms / 1000).toFixed(2)} s`;
  const formats = {
    Millis: time,
    Seconds: s => `${s.toFixed(2)} s`,
    Share: share => `${(share * 100).toPrecision(3)} %`,
    Count: count => count.toFixed(0),
    Decimal: value => value.toFixed(2),
  };

  // Tabs: the sections stay one below the other without this script, and on paper.
  const tabs = [...document.querySelectorAll('.tabs a')];
  const sections = tabs.map(tab => document.querySelector(tab.hash));
  const choose = chosen => tabs.forEach((tab, number) => {
    const isChosen = tab === chosen;
    tab.setAttribute('aria-selected', isChosen);
    tab.tabIndex = isChosen ? 0 : -1;
    sections[number].hidden = !isChosen;
  });
  const chosen = () => tabs.find(tab => tab.hash === location.hash) ?? tabs[0];
  document.querySelector('.tabs').setAttribute('role', 'tablist');
  document.querySelectorAll('.tabs li').forEach(item => item.setAttribute('role', 'presentation'));
  tabs.forEach((tab, number) => {
    tab.setAttribute('role', 'tab');
    tab.setAttribute('aria-controls', sections[number].id);
    sections[number].setAttribute('role', 'tabpanel');
    sections[number].setAttribute('aria-labelledby', tab.id);
    tab.addEventListener('click', event => {
      event.preventDefault();
      history.replaceState(null, '', tab.hash);
      choose(tab);
    });
    tab.addEventListener('keydown', event => {
      const last = tabs.length - 1;
      const next = {
        ArrowRight: number === last ? 0 : number + 1, ArrowLeft: number === 0 ? last : number - 1, Home: 0, End: last, ' ': number,
      }[event.key];
      if (next === undefined) return;
      event.preventDefault();
      tabs[next].focus();
      tabs[next].click();
    });
  });
  document.documentElement.classList.add('tabbed');
  addEventListener('hashchange', () => choose(chosen()));
  choose(chosen());

  // Charts: the values nearest to the pointer, or to a slider for the keyboard.
  const scale = text => {
    const [kind, format, ...numbers] = text.split(' ');
    const [low, high, from, to] = numbers.map(Number);
    const of = kind === 'log' ? Math.log : value => value;
    const place = value => from + (of(Math.max(value, low)) - of(low)) / (of(high) - of(low)) * (to - from);
    return { place, from, to, text: formats[format] };
  };
  const points = pointer => {
    const values = at(pointer);
    if (Array.isArray(values)) return values;
    const seconds = values.bucket_ms / 1000;
    return values.series.map((value, number) => [(values.from_s ?? 0) + (number + 0.5) * seconds, value]);
  };
  document.querySelectorAll('.chart').forEach(chart => {
    const svg = chart.querySelector(':scope > svg');
    const [x, y] = [scale(svg.dataset.x), scale(svg.dataset.y)];
    const drawn = name => svg.appendChild(document.createElementNS(svg.namespaceURI, name));
    const series = [...svg.querySelectorAll('.series')].map(path => ({
      name: path.dataset.name, values: points(path.dataset.figure), run: [...path.classList].find(name => name.startsWith('run')),
    }));
    const line = drawn('line');
    const marks = series.map(() => drawn('circle'));
    const slider = element('input', { type: 'range', min: 0, max: 200, value: 100, 'aria-label': `Values of: ${chart.querySelector('figcaption span').textContent}` });
    // The slider says its values itself.
    const output = element('output', { 'aria-live': 'off' });
    const show = () => {
      const across = x.from + (x.to - x.from) * slider.value / 200;
      Object.entries({ class: 'cursor', x1: across, x2: across, y1: y.from, y2: y.to }).forEach(([key, value]) => line.setAttribute(key, value));
      const texts = series.map(({ name, values, run }, number) => {
        const far = ([value]) => Math.abs(x.place(value) - across);
        const [first, second] = values.reduce((near, point) => far(point) < far(near) ? point : near);
        Object.entries({ class: `at ${run}`, cx: x.place(first), cy: y.place(second), r: 4.5 }).forEach(([key, value]) => marks[number].setAttribute(key, value));
        return `${name ? `${name}: ` : ''}${x.text(first)}, ${y.text(second)}`;
      });
      output.textContent = texts.join('; ');
      slider.setAttribute('aria-valuetext', output.textContent);
    };
    slider.addEventListener('input', show);
    svg.addEventListener('pointermove', event => {
      const place = new DOMPoint(event.clientX, event.clientY).matrixTransform(svg.getScreenCTM().inverse());
      slider.value = Math.round((place.x - x.from) / (x.to - x.from) * 200);
      show();
    });
    output.textContent = 'Values: move over the chart, or move the slider.';
    chart.append(slider, output);
  });

  // Tables whose headings sort them.
  const key = row => cell => {
    const shown = row.cells[cell];
    const value = shown.querySelector('data')?.value;
    return value === undefined ? shown.textContent : Number(value);
  };
  document.querySelectorAll('table.sortable').forEach(table => [...table.tHead.rows[0].cells].forEach((heading, cell) => {
    if (!heading.textContent) return;
    const button = element('button', { type: 'button' }, heading.textContent);
    heading.replaceChildren(button);
    button.addEventListener('click', () => {
      const direction = heading.getAttribute('aria-sort') === 'descending' ? 1 : -1;
      [...table.tHead.rows[0].cells].forEach(other => other.removeAttribute('aria-sort'));
      heading.setAttribute('aria-sort', direction === 1 ? 'ascending' : 'descending');
      const order = (one, other) => typeof one === typeof other ? (one < other ? -1 : one > other ? 1 : 0) : typeof one === 'number' ? 1 : -1;
      const rows = [...table.tBodies[0].rows];
      rows.sort((one, other) => direction * order(key(one)(cell), key(other)(cell)));
      table.tBodies[0].append(...rows);
    });
  }));
})();
