// What is wrong with a page for people who use it without a mouse or without eyes. Each function returns a list, empty
// if nothing is. An expression, so that a test can call a function of it.
(() => {
  const CONTROLS = "a[href], button, input, select, textarea, summary, [tabindex='0']";
  const NAMING = ["aria-controls", "aria-labelledby", "aria-describedby", "for"];

  const shown = selector => [...document.querySelectorAll(selector)].filter(one => one.checkVisibility());
  const named = one => one.getAttribute("aria-label") ?? one.labels?.[0]?.textContent ?? one.textContent;

  // Controls without a name.
  function unnamed() {
    return shown(CONTROLS).filter(one => !named(one).trim()).map(one => one.outerHTML);
  }

  // Controls smaller than 24 by 24 pixels (WCAG 2.5.8), other than links in text.
  function small() {
    return shown(CONTROLS).filter(one => !one.closest("p, li, td") && !one.matches(".skip, input[type=checkbox]"))
      .filter(one => Math.min(one.getBoundingClientRect().width, one.getBoundingClientRect().height) < 24)
      .map(one => one.outerHTML);
  }

  // Ids that occur twice, references to ids that do not exist, headings that skip a level, landmarks.
  function structure() {
    const ids = [...document.querySelectorAll("[id]")].map(one => one.id);
    const wrong = ids.filter((id, index) => ids.indexOf(id) !== index).map(id => `twice: ${id}`);
    for (const name of NAMING) {
      for (const one of document.querySelectorAll(`[${name}]`)) {
        const absent = one.getAttribute(name).split(" ").filter(id => !ids.includes(id));
        wrong.push(...absent.map(id => `${name} of nothing: ${id}`));
      }
    }
    const levels = shown("h1, h2, h3, h4, h5, h6").map(one => Number(one.tagName[1]));
    wrong.push(...levels.filter((level, index) => level > (levels[index - 1] ?? 0) + 1).map(level => `skips to ${level}`));
    return [...wrong, ...["main", "h1"].filter(name => document.querySelectorAll(name).length !== 1)];
  }

  // Texts whose contrast with what is behind them is below 4.5 (WCAG 1.4.3).
  function contrast() {
    const low = [];
    for (const [one, color, what] of texts()) {
      const behind = background(one), value = ratio(over(rgba(color), behind), behind);
      if (value < 4.5) low.push(`${value.toFixed(2)} ${what}`);
    }
    return low;
  }

  // Visible texts: element, color, content.
  function texts() {
    const found = [];
    for (const one of shown("body *")) {
      if (getComputedStyle(one).visibility !== "visible" || one.closest(".unseen, :disabled, svg")) continue;
      const own = [...one.childNodes].filter(child => child.nodeType === Node.TEXT_NODE && child.textContent.trim());
      if (own.length) found.push([one, getComputedStyle(one).color, own[0].textContent.slice(0, 40)]);
      if (one.placeholder) found.push([one, getComputedStyle(one, "::placeholder").color, `placeholder of ${one.id}`]);
    }
    return found;
  }

  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });

  function rgba(color) {
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = color;
    canvas.fillRect(0, 0, 1, 1);
    const [red, green, blue, alpha] = canvas.getImageData(0, 0, 1, 1).data;
    return [red, green, blue, alpha / 255];
  }

  function over(top, below) {
    return [0, 1, 2].map(index => top[index] * top[3] + below[index] * (1 - top[3]));
  }

  function background(one) {
    const layers = [];
    for (let at = one; at; at = at.parentElement) {
      layers.unshift(rgba(getComputedStyle(at).backgroundColor));
      if (layers[0][3] === 1) break;
    }
    return layers.reduce((below, layer) => over(layer, below), [255, 255, 255]);
  }

  function luminance(color) {
    const linear = part => part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
    return [0.2126, 0.7152, 0.0722].reduce((sum, weight, index) => sum + weight * linear(color[index] / 255), 0);
  }

  function ratio(one, other) {
    const [dark, light] = [luminance(one), luminance(other)].sort((a, b) => a - b);
    return (light + 0.05) / (dark + 0.05);
  }

  // What reaches beyond the right edge of the window, other than in what scrolls by itself.
  function overflow() {
    const wide = shown("body *").filter(one => !one.closest(".unseen, .code pre, .table, .skip, svg"))
      .filter(one => one.getBoundingClientRect().right > innerWidth + 0.5).map(one => one.outerHTML.slice(0, 120));
    return document.documentElement.scrollWidth > innerWidth ? ["the page", ...wide] : wide;
  }

  return { unnamed, small, structure, contrast, overflow, texts };
})()
